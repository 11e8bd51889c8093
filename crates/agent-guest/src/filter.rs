//! The system call filter that a container gets on top of its engine's: what no engine's profile refuses everywhere, and
//! what lets a process reach deeper into the kernel, or out of the sandbox, than its commands need.

// Instruction codes of `<linux/bpf_common.h>`.
const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const RETURN: u16 = 0x06; // BPF_RET | BPF_K
const IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const IF_NOT_LESS: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
const IF_ANY_BIT: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K

// Offsets in `struct seccomp_data`. The lower half of an argument comes first on the machines that are supported.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const FIRST_ARGUMENT: u32 = 16;
const SECOND_ARGUMENT: u32 = 24;

// Answers of `<linux/seccomp.h>`.
const KILL_PROCESS: u32 = 0x8000_0000;
const ALLOW: u32 = 0x7fff_0000;
const REFUSED: u32 = 0x0005_0000 | libc::EPERM as u32;
/// A C library takes this as "this kernel is older" and does without; `EPERM` would be an error to it.
const MISSING: u32 = 0x0005_0000 | libc::ENOSYS as u32;

/// `CLONE_NEWUSER`.
const NEW_USER: u32 = 0x1000_0000;

/// Socket families that programs need: `AF_UNIX`, `AF_INET`, `AF_INET6`, `AF_NETLINK`. `AF_VSOCK` knows no network
/// namespaces; `AF_ALG`, `AF_PACKET` and some forty others only reach kernel code.
const FAMILIES: [u32; 4] = [1, 2, 10, 16];

/// `TIOCSTI` and `TIOCLINUX`: both type into the terminal that a process was given.
const TYPING: [u32; 2] = [0x5412, 0x541c];

/// The numbers that an architecture has for the calls that are looked at.
#[derive(Debug, PartialEq, Eq)]
struct Calls {
    /// `AUDIT_ARCH_*` of `<linux/audit.h>`.
    architecture: u32,
    /// First number of a second system call table, if there is one: x32.
    second_table: Option<u32>,
    /// `io_uring_setup`, `io_uring_enter`, `io_uring_register`, `add_key`, `request_key`, `keyctl`, `userfaultfd`,
    /// `bpf`, `perf_event_open`.
    refused: [u32; 9],
    clone: u32,
    clone3: u32,
    unshare: u32,
    socket: u32,
    socketpair: u32,
    ioctl: u32,
}

const X86_64: Calls = Calls {
    architecture: 0xc000_003e,
    second_table: Some(0x4000_0000),
    refused: [425, 426, 427, 248, 249, 250, 323, 321, 298],
    clone: 56,
    clone3: 435,
    unshare: 272,
    socket: 41,
    socketpair: 53,
    ioctl: 16,
};

const AARCH64: Calls = Calls {
    architecture: 0xc000_00b7,
    second_table: None,
    refused: [425, 426, 427, 217, 218, 219, 282, 280, 241],
    clone: 220,
    clone3: 435,
    unshare: 97,
    socket: 198,
    socketpair: 199,
    ioctl: 29,
};

/// The program for this machine (an array of `struct sock_filter`); `None` for an architecture that is not known.
pub fn program() -> Option<Vec<u8>> {
    let calls = match std::env::consts::ARCH {
        "x86_64" => &X86_64,
        "aarch64" => &AARCH64,
        _ => return None,
    };
    Some(compile(calls).into_iter().flat_map(Instruction::bytes).collect())
}

/// One instruction: `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    value: u32,
}

impl Instruction {
    fn bytes(self) -> [u8; 8] {
        let (code, value) = (self.code.to_ne_bytes(), self.value.to_ne_bytes());
        [code[0], code[1], self.if_true, self.if_false, value[0], value[1], value[2], value[3]]
    }
}

fn compile(calls: &Calls) -> Vec<Instruction> {
    let step = |code, if_true, if_false, value| Instruction { code, if_true, if_false, value };
    let answer = |value| step(RETURN, 0, 0, value);
    let load = |offset| step(LOAD, 0, 0, offset);
    let mut program = vec![
        load(ARCHITECTURE),
        step(IF_EQUAL, 1, 0, calls.architecture),
        answer(KILL_PROCESS),
        load(NUMBER),
    ];
    if let Some(first) = calls.second_table {
        program.extend([step(IF_NOT_LESS, 0, 1, first), answer(REFUSED)]);
    }
    for number in calls.refused {
        program.extend([step(IF_EQUAL, 0, 1, number), answer(REFUSED)]);
    }
    program.extend([step(IF_EQUAL, 0, 1, calls.clone3), answer(MISSING)]);
    for number in [calls.clone, calls.unshare] {
        program.extend([
            step(IF_EQUAL, 0, 4, number),
            load(FIRST_ARGUMENT),
            step(IF_ANY_BIT, 0, 1, NEW_USER),
            answer(REFUSED),
            answer(ALLOW),
        ]);
    }
    for number in [calls.socket, calls.socketpair] {
        let [a, b, c, d] = FAMILIES;
        program.extend([
            step(IF_EQUAL, 0, 7, number),
            load(FIRST_ARGUMENT),
            step(IF_EQUAL, 4, 0, a),
            step(IF_EQUAL, 3, 0, b),
            step(IF_EQUAL, 2, 0, c),
            step(IF_EQUAL, 1, 0, d),
            answer(REFUSED),
            answer(ALLOW),
        ]);
    }
    let [push, linux] = TYPING;
    program.extend([
        step(IF_EQUAL, 0, 4, calls.ioctl),
        load(SECOND_ARGUMENT),
        step(IF_EQUAL, 1, 0, push),
        step(IF_EQUAL, 0, 1, linux),
        answer(REFUSED),
        answer(ALLOW),
    ]);
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program as the kernel would, and never beyond its end.
    fn run(calls: &Calls, architecture: u32, number: u32, first: u64, second: u64) -> u32 {
        let mut data = [number.to_ne_bytes(), architecture.to_ne_bytes(), [0; 4], [0; 4]].concat();
        data.extend([first.to_ne_bytes(), second.to_ne_bytes()].concat());
        let (program, mut at, mut value) = (compile(calls), 0, 0);
        loop {
            let i = program[at];
            at += 1;
            let jump = |holds: bool| usize::from(if holds { i.if_true } else { i.if_false });
            match i.code {
                LOAD => {
                    let from = i.value as usize;
                    value = u32::from_ne_bytes(data[from..from + 4].try_into().unwrap());
                }
                RETURN => return i.value,
                IF_EQUAL => at += jump(value == i.value),
                IF_NOT_LESS => at += jump(value >= i.value),
                IF_ANY_BIT => at += jump(value & i.value != 0),
                code => panic!("{code:#x}"),
            }
        }
    }

    #[test]
    fn every_call_gets_its_answer_on_every_architecture() {
        for calls in [&X86_64, &AARCH64] {
            let answer = |number, first, second| run(calls, calls.architecture, number, first, second);
            let looked_at =
                [calls.clone, calls.clone3, calls.unshare, calls.socket, calls.socketpair, calls.ioctl];
            for number in (0..600).filter(|number| !looked_at.contains(number)) {
                let expected = if calls.refused.contains(&number) { REFUSED } else { ALLOW };
                assert_eq!(answer(number, 38, 0x5412), expected, "{number}");
            }
            assert_eq!(answer(calls.clone3, 0, 0), MISSING);
            for number in [calls.clone, calls.unshare] {
                assert_eq!(answer(number, 0x1000_0011, 0), REFUSED);
                assert_eq!(answer(number, 0x7e02_0000, 0), REFUSED);
                assert_eq!(answer(number, 0x6e02_0011, 0), ALLOW, "the engine's filter has the rest");
                assert_eq!(answer(number, 0x1_0000_0011, 0), ALLOW);
            }
            for number in [calls.socket, calls.socketpair] {
                for family in 0..64 {
                    let expected = if [1, 2, 10, 16].contains(&family) { ALLOW } else { REFUSED };
                    assert_eq!(answer(number, family, 0), expected, "{family}");
                    // The kernel reads the lower half alone.
                    assert_eq!(answer(number, family | 1 << 32, 0), expected, "{family}");
                }
            }
            for (request, expected) in
                [(0x5412, REFUSED), (0x541c, REFUSED), (1 << 32 | 0x5412, REFUSED), (0x5401, ALLOW)]
            {
                assert_eq!(answer(calls.ioctl, 0x5412, request), expected, "{request:#x}");
            }
            for foreign in [0x4000_0003, 0x4000_0028, 0] {
                assert_eq!(run(calls, foreign, 1, 0, 0), KILL_PROCESS);
            }
        }
        for number in [0x4000_0000, 0x4000_0029, u32::MAX] {
            assert_eq!(run(&X86_64, X86_64.architecture, number, 1, 0), REFUSED, "x32");
        }
    }

    #[test]
    fn the_numbers_are_those_of_this_machine() {
        let native = match std::env::consts::ARCH {
            "x86_64" => &X86_64,
            "aarch64" => &AARCH64,
            _ => return assert_eq!(program(), None),
        };
        let number = |number: libc::c_long| number as u32;
        let here = Calls {
            architecture: native.architecture,
            second_table: native.second_table,
            refused: [
                libc::SYS_io_uring_setup,
                libc::SYS_io_uring_enter,
                libc::SYS_io_uring_register,
                libc::SYS_add_key,
                libc::SYS_request_key,
                libc::SYS_keyctl,
                libc::SYS_userfaultfd,
                libc::SYS_bpf,
                libc::SYS_perf_event_open,
            ]
            .map(number),
            clone: number(libc::SYS_clone),
            clone3: number(libc::SYS_clone3),
            unshare: number(libc::SYS_unshare),
            socket: number(libc::SYS_socket),
            socketpair: number(libc::SYS_socketpair),
            ioctl: number(libc::SYS_ioctl),
        };
        assert_eq!(*native, here);
    }
}
