//! A kernel of a few hundred bytes: entered as Linux is, in 64-bit mode, it says that it is there on the first serial port,
//! and then counts in memory, saying each number. With `e` as the first letter of its command line it says no number and
//! resets the machine.

use std::path::Path;

std::arch::global_asm!(
    ".section .rodata.moltis_payload, \"a\"",
    ".balign 16",
    ".global moltis_payload_start",
    ".global moltis_payload_end",
    "moltis_payload_start:",
    // The boot parameters; the address of the command line is at 0x228.
    "    mov r12d, dword ptr [rsi + 0x228]",
    "    mov dx, 0x3f8",
    "    lea rdi, [rip + 90f]",
    "10: mov al, byte ptr [rdi]",
    "    test al, al",
    "    jz 11f",
    "    out dx, al",
    "    inc rdi",
    "    jmp 10b",
    "11: cmp byte ptr [r12], 'e'",
    "    jne 20f",
    // The keyboard controller's reset.
    "    mov al, 0xfe",
    "    out 0x64, al",
    "12: pause",
    "    jmp 12b",
    "20: inc qword ptr [rip + 91f]",
    "    mov rbx, qword ptr [rip + 91f]",
    "    mov ecx, 8",
    "21: rol ebx, 4",
    "    mov eax, ebx",
    "    and eax, 15",
    "    add al, '0'",
    "    cmp al, '9'",
    "    jbe 22f",
    "    add al, 39",
    "22: out dx, al",
    "    dec ecx",
    "    jnz 21b",
    "    mov al, 10",
    "    out dx, al",
    "    mov ecx, 100000",
    "23: pause",
    "    dec ecx",
    "    jnz 23b",
    "    jmp 20b",
    "90: .asciz \"moltis payload\\n\"",
    ".balign 8",
    "91: .quad 0",
    "moltis_payload_end:",
    ".previous",
);

unsafe extern "C" {
    static moltis_payload_start: u8;
    static moltis_payload_end: u8;
}

/// What it says first.
pub const GREETING: &str = "moltis payload\n";

/// Where it lies in the machine's memory.
const ADDRESS: u64 = 0x0100_0000;

fn code() -> &'static [u8] {
    // SAFETY: both symbols bound the bytes that the assembler put between them, which are never written.
    unsafe {
        let start = &raw const moltis_payload_start;
        let length = (&raw const moltis_payload_end).offset_from_unsigned(start);
        std::slice::from_raw_parts(start, length)
    }
}

/// Writes it as an ELF program of one segment.
pub fn write(path: &Path) {
    let code = code();
    let mut file = Vec::new();
    file.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    for half in [2_u16, 62] {
        file.extend_from_slice(&half.to_le_bytes());
    }
    file.extend_from_slice(&1_u32.to_le_bytes());
    for word in [ADDRESS, 64, 0] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    file.extend_from_slice(&0_u32.to_le_bytes());
    for half in [64_u16, 56, 1, 64, 0, 0] {
        file.extend_from_slice(&half.to_le_bytes());
    }
    // One segment to load, readable, writable, executable.
    for word in [1_u32, 7] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    let length = code.len() as u64;
    for word in [4096, ADDRESS, ADDRESS, length, length, 4096] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    file.resize(4096, 0);
    file.extend_from_slice(code);
    std::fs::write(path, file).unwrap();
}

/// The numbers that it said, of which the first and the last may be cut.
pub fn numbers(said: &str) -> Vec<u64> {
    let whole = said.lines().filter(|line| line.len() == 8);
    whole.filter_map(|line| u64::from_str_radix(line, 16).ok()).collect()
}
