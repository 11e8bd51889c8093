//! The filter as the kernel's classic BPF: a binary search over ranges of call numbers.
//!
//! A list of comparisons, one for each call, is five times as long, and the kernel not only walks it at calls: while
//! it takes a filter it runs it once for every number, which for a list takes longer than all the rest of a launch
//! after the namespaces.

// Instruction codes of `<linux/bpf_common.h>`.
const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const RETURN: u16 = 0x06; // BPF_RET | BPF_K
const JUMP: u16 = 0x05; // BPF_JMP | BPF_JA
const IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const IF_NOT_LESS: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
const IF_ANY_BIT: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K

// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

// Answers of `<linux/seccomp.h>`.
const KILL_PROCESS: u32 = 0x8000_0000;
const ERRNO: u32 = 0x0005_0000;
const ALLOW: u32 = 0x7fff_0000;

/// What is answered to a call. Conditions look at the lower half of an argument, which is all that the kernel reads of
/// those that are compared here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is made.
    Allow,
    /// It fails with this error number.
    Errno(u16),
    /// It is made if the argument is one of these, else it fails with the error number.
    OneOf(u8, &'static [u32], u16),
    /// It fails with the error number if the argument is one of these, else it is made.
    NoneOf(u8, &'static [u32], u16),
    /// It fails with the error number if the argument has any of these bits, else it is made.
    NoBit(u8, u32, u16),
    /// It fails with the error number if each of the two arguments has any of its bits, else it is made.
    NotBoth([(u8, u32); 2], u16),
    /// It is made if each of the two arguments is its value, else it fails with the error number.
    Exactly([(u8, u32); 2], u16),
}

/// One instruction: `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    value: u32,
}

impl Instruction {
    fn new(code: u16, if_true: u8, if_false: u8, value: u32) -> Self {
        Self { code, if_true, if_false, value }
    }

    /// As the kernel has it in memory.
    pub fn bytes(self) -> [u8; 8] {
        let (code, value) = (self.code.to_ne_bytes(), self.value.to_ne_bytes());
        [code[0], code[1], self.if_true, self.if_false, value[0], value[1], value[2], value[3]]
    }
}

/// The program that answers calls of `architecture` (`AUDIT_ARCH_*`) below `end` as `verdict` says, those from there
/// on by `beyond`, and calls of any other architecture by the death of the process.
pub fn program(
    architecture: u32,
    end: u32,
    beyond: Verdict,
    verdict: impl Fn(u32) -> Verdict,
) -> Vec<Instruction> {
    let mut ranges: Vec<(u32, Verdict)> = Vec::new();
    for (number, verdict) in (0..end).map(|number| (number, verdict(number))).chain([(end, beyond)]) {
        if ranges.last().is_none_or(|(_, last)| *last != verdict) {
            ranges.push((number, verdict));
        }
    }
    let mut program = vec![
        Instruction::new(LOAD, 0, 0, ARCHITECTURE),
        Instruction::new(IF_EQUAL, 1, 0, architecture),
        Instruction::new(RETURN, 0, 0, KILL_PROCESS),
        Instruction::new(LOAD, 0, 0, NUMBER),
    ];
    program.extend(search(&ranges));
    program
}

/// Finds the last range that does not start after the number.
fn search(ranges: &[(u32, Verdict)]) -> Vec<Instruction> {
    match ranges {
        [] => vec![Instruction::new(RETURN, 0, 0, KILL_PROCESS)],
        [(_, verdict)] => answer(*verdict),
        _ => {
            let (lower, upper) = ranges.split_at(ranges.len() / 2);
            let below = search(lower);
            let mut program = match u8::try_from(below.len()) {
                Ok(skip) => vec![Instruction::new(IF_NOT_LESS, skip, 0, upper[0].0)],
                // Conditional jumps reach 255 instructions only.
                Err(_) => vec![
                    Instruction::new(IF_NOT_LESS, 0, 1, upper[0].0),
                    Instruction::new(JUMP, 0, 0, below.len() as u32),
                ],
            };
            program.extend(below);
            program.extend(search(upper));
            program
        }
    }
}

fn answer(verdict: Verdict) -> Vec<Instruction> {
    let allow = Instruction::new(RETURN, 0, 0, ALLOW);
    let fail = |errno: u16| Instruction::new(RETURN, 0, 0, ERRNO | u32::from(errno));
    // The lower half of an argument comes first on little-endian machines, which all supported ones are.
    let load = |argument: u8| Instruction::new(LOAD, 0, 0, ARGUMENTS + 8 * u32::from(argument));
    let equal = |values: &'static [u32]| {
        // Each jumps over the rest and over the answer to "none of them".
        let last = values.len();
        values
            .iter()
            .enumerate()
            .map(move |(at, value)| Instruction::new(IF_EQUAL, (last - at) as u8, 0, *value))
    };
    match verdict {
        Verdict::Allow => vec![allow],
        Verdict::Errno(errno) => vec![fail(errno)],
        Verdict::OneOf(argument, values, errno) => {
            [load(argument)].into_iter().chain(equal(values)).chain([fail(errno), allow]).collect()
        }
        Verdict::NoneOf(argument, values, errno) => {
            [load(argument)].into_iter().chain(equal(values)).chain([allow, fail(errno)]).collect()
        }
        Verdict::NoBit(argument, bits, errno) => {
            vec![load(argument), Instruction::new(IF_ANY_BIT, 1, 0, bits), allow, fail(errno)]
        }
        Verdict::NotBoth([(first, these), (second, those)], errno) => vec![
            load(first),
            Instruction::new(IF_ANY_BIT, 0, 2, these),
            load(second),
            Instruction::new(IF_ANY_BIT, 1, 0, those),
            allow,
            fail(errno),
        ],
        Verdict::Exactly([(first, this), (second, that)], errno) => vec![
            load(first),
            Instruction::new(IF_EQUAL, 0, 2, this),
            load(second),
            Instruction::new(IF_EQUAL, 1, 0, that),
            fail(errno),
            allow,
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program as the kernel would.
    fn run(program: &[Instruction], architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let mut data = [number.to_ne_bytes(), architecture.to_ne_bytes(), [0; 4], [0; 4]].concat();
        arguments.iter().for_each(|argument| data.extend_from_slice(&argument.to_ne_bytes()));
        let (mut at, mut value) = (0, 0);
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
                JUMP => at += i.value as usize,
                IF_EQUAL => at += jump(value == i.value),
                IF_NOT_LESS => at += jump(value >= i.value),
                IF_ANY_BIT => at += jump(value & i.value != 0),
                code => panic!("{code:#x}"),
            }
        }
    }

    #[test]
    fn every_number_gets_its_verdict() {
        // Ranges of all lengths, and more of them than a conditional jump reaches.
        let verdict = |number: u32| match number % 13 {
            0 => Verdict::OneOf(0, &[1, 2, 10], 1),
            1..=4 => Verdict::Allow,
            5 => Verdict::NoneOf(1, &[7, 9], 1),
            6 | 7 => Verdict::Errno(38),
            8 => Verdict::NoBit(0, 0b110, 1),
            9 => Verdict::NotBoth([(0, 0b10), (1, 0b1)], 1),
            10 => Verdict::Exactly([(0, 2), (1, 8)], 1),
            _ => Verdict::Errno(1),
        };
        let program = program(5, 1200, Verdict::Errno(99), verdict);
        assert!(program.len() < 4096);
        let fail = |errno: u32| ERRNO | errno;
        for number in 0..1200 {
            for (first, second) in
                [(1, 7), (2, 8), (3, 9), (0xffff_ffff_0000_000a, 1), (8, 0xffff_ffff_0000_0007)]
            {
                let low = |value: u64| value as u32;
                let expected = match verdict(number) {
                    Verdict::Allow => ALLOW,
                    Verdict::Errno(errno) => fail(errno.into()),
                    Verdict::OneOf(_, values, _) if values.contains(&low(first)) => ALLOW,
                    Verdict::NoneOf(_, values, _) if !values.contains(&low(second)) => ALLOW,
                    Verdict::NoBit(_, bits, _) if low(first) & bits == 0 => ALLOW,
                    Verdict::NotBoth([(_, a), (_, b)], _) if low(first) & a == 0 || low(second) & b == 0 => {
                        ALLOW
                    }
                    Verdict::Exactly([(_, a), (_, b)], _) if low(first) == a && low(second) == b => ALLOW,
                    _ => fail(1),
                };
                assert_eq!(run(&program, 5, number, [first, second, 0, 0, 0, 0]), expected, "{number}");
            }
        }
        for number in [1200, 5000, 0x4000_0001, u32::MAX] {
            assert_eq!(run(&program, 5, number, [0; 6]), fail(99));
        }
        assert_eq!(run(&program, 6, 1, [0; 6]), KILL_PROCESS);
    }
}
