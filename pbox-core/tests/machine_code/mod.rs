//! The machine code of a program, from objdump. [`Program`] has the functions, the functions to which each function
//! refers, and the instructions that a round path must not have. This module reads x86-64 code in AT&T syntax.
//!
//! A function refers to every function whose address one of its instructions names. The address may be the target of a call
//! or a jump, or may be in a slot of the global offset table. The function may be called, or its address may only be
//! loaded. Calls through a pointer in memory are not followed.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::Command;

/// One function.
#[derive(Debug, Default)]
pub struct Function {
    /// The demangled name.
    pub name: String,
    /// The addresses that the function's instructions name.
    references: Vec<u64>,
    /// Locked or atomic read-modify-write instructions, in objdump's words.
    pub locked: Vec<String>,
    /// Instructions that enter the kernel.
    pub system_calls: Vec<String>,
}

/// All functions of a program.
pub struct Program {
    functions: BTreeMap<u64, Function>,
    /// The slots of the global offset table. A slot has the address of a function of the program, or the name of a function
    /// of a library.
    slots: HashMap<u64, Slot>,
}

enum Slot {
    Here(u64),
    Library(String),
}

/// The functions that can be reached from a set of functions.
#[derive(Debug, Default)]
pub struct Reached<'a> {
    pub functions: Vec<&'a Function>,
    /// The functions of libraries. They are not followed.
    pub libraries: Vec<&'a str>,
}

impl Program {
    pub fn disassemble(path: &Path) -> Self {
        let mut program = Program { functions: BTreeMap::new(), slots: HashMap::new() };
        for line in objdump(&["-R"], path).lines() {
            // "0000000000122718 R_X86_64_RELATIVE  *ABS*+0x0000000000059bc0"
            let mut words = line.split_whitespace();
            let (Some(slot), Some(_), Some(value)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            let Ok(slot) = u64::from_str_radix(slot, 16) else { continue };
            let target = match value.strip_prefix("*ABS*+0x") {
                Some(address) => Slot::Here(u64::from_str_radix(address, 16).unwrap()),
                None => Slot::Library(value.split('@').next().unwrap_or(value).to_owned()),
            };
            program.slots.insert(slot, target);
        }
        let mut current = Function::default();
        let mut address = 0;
        for line in objdump(&["-d", "-C", "--no-show-raw-insn"], path).lines() {
            if let Some((start, name)) = header(line) {
                program.functions.insert(address, std::mem::take(&mut current));
                (address, current.name) = (start, name.to_owned());
            } else if let Some((_, instruction)) = line.split_once(":\t") {
                current.read(instruction);
            }
        }
        program.functions.insert(address, current);
        program
    }

    /// Returns the addresses of the functions whose demangled name satisfies `is`.
    pub fn named(&self, is: impl Fn(&str) -> bool) -> Vec<u64> {
        self.functions
            .iter()
            .filter(|(_, function)| is(&function.name))
            .map(|(&address, _)| address)
            .collect()
    }

    /// Returns everything that can be reached from `roots` without passing a function whose name contains one of `stops`.
    pub fn reached_from(&self, roots: &[u64], stops: &[&str]) -> Reached<'_> {
        let mut reached = Reached::default();
        let mut seen = std::collections::HashSet::new();
        let mut open = roots.to_vec();
        while let Some(address) = open.pop() {
            if !seen.insert(address) {
                continue;
            }
            match (self.functions.get(&address), self.slots.get(&address)) {
                (_, Some(&Slot::Here(target))) => open.push(target),
                (_, Some(Slot::Library(name))) => reached.libraries.push(name),
                (Some(function), None) if stops.iter().any(|stop| function.name.contains(stop)) => {}
                (Some(function), None) if function.name.ends_with("@plt") => {
                    reached.libraries.push(function.name.trim_end_matches("@plt"));
                }
                (Some(function), None) => {
                    reached.functions.push(function);
                    open.extend(&function.references);
                }
                // The address is that of data, or lies inside a function.
                (None, None) => {}
            }
        }
        reached.libraries.sort_unstable();
        reached.libraries.dedup();
        reached
    }
}

impl Function {
    fn read(&mut self, instruction: &str) {
        let (mnemonic, operands) = instruction.split_once(' ').unwrap_or((instruction, ""));
        // With memory, "xchg" is locked even without a prefix. Between registers, it is a form of no-op.
        let (operands, comment) = operands.split_once('#').unwrap_or((operands, ""));
        if mnemonic == "lock" || (mnemonic.starts_with("xchg") && operands.contains('(')) {
            self.locked.push(instruction.to_owned());
        }
        if matches!(mnemonic, "syscall" | "sysenter" | "int") {
            self.system_calls.push(instruction.to_owned());
        }
        // The forms are "call 59bc0 <name>", "call *0xc8423(%rip)  # 122938 <...>", "lea ...(%rip),%rax  # 59bc0 <...>"
        for text in [operands, comment] {
            if let Some((address, _)) = text.split_once('<')
                && let Some(address) = address.split_whitespace().next_back()
                && let Ok(address) = u64::from_str_radix(address, 16)
            {
                self.references.push(address);
            }
        }
    }
}

/// Parses a header such as "0000000000059f90 <pbox_core::turn::Core<P>::turn>:".
fn header(line: &str) -> Option<(u64, &str)> {
    let (address, name) = line.strip_suffix(">:")?.split_once(" <")?;
    Some((u64::from_str_radix(address, 16).ok()?, name))
}

fn objdump(arguments: &[&str], path: &Path) -> String {
    let output = match Command::new("objdump").args(arguments).arg(path).output() {
        Ok(output) => output,
        Err(error) => panic!("objdump does not start ({error}); install the package binutils"),
    };
    assert!(output.status.success(), "objdump: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
