//! What a PTX module declares: kernels with their parameters, and variables.

use crate::code::Code;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ptx {
    pub(crate) entries: Vec<Entry>,
    pub(crate) variables: Vec<Variable>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// The size of each parameter, in bytes.
    pub(crate) parameters: Vec<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Variable {
    pub(crate) name: String,
    /// What it holds at first.
    pub(crate) bytes: Vec<u8>,
}

impl Ptx {
    pub(crate) fn parse(source: &str) -> Result<Ptx, Code> {
        let source = without_comments(source);
        if !source.contains(".version") || !source.contains(".target") {
            return Err(Code::INVALID_PTX);
        }
        let mut ptx = Ptx::default();
        for statement in statements(&source)? {
            if let Some((_, rest)) = statement.split_once(".entry") {
                ptx.entries.push(entry(rest)?);
            } else if !statement.contains(".func")
                && let Some((_, rest)) =
                    statement.split_once(".global").or_else(|| statement.split_once(".const"))
            {
                ptx.variables.push(variable(rest)?);
            }
        }
        Ok(ptx)
    }
}

fn without_comments(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("/*").into_iter().chain(rest.find("//")).min() {
        text.push_str(&rest[..at]);
        text.push(' ');
        let end = if rest[at..].starts_with("/*") { "*/" } else { "\n" };
        rest = rest[at..].find(end).map_or("", |it| &rest[at + it + end.len()..]);
    }
    text + rest
}

/// What stands at the outermost level, the bodies of functions left out. What ends with its line and not with a semicolon
/// is in front of the first of them.
fn statements(source: &str) -> Result<Vec<String>, Code> {
    let mut statements = Vec::new();
    let mut statement = String::new();
    let mut depth = 0_usize;
    for it in source.chars() {
        let in_body = depth > 0 && is_function(&statement);
        match it {
            '{' => depth += 1,
            '}' => depth = depth.checked_sub(1).ok_or(Code::INVALID_PTX)?,
            _ => {}
        }
        let opens_body = it == '{' && is_function(&statement);
        if !in_body && !opens_body {
            statement.push(it);
        }
        let ends = it == ';' || (it == '}' && is_function(&statement));
        if ends && depth == 0 {
            statements.push(std::mem::take(&mut statement));
        }
    }
    if depth == 0 { Ok(statements) } else { Err(Code::INVALID_PTX) }
}

fn is_function(statement: &str) -> bool {
    statement.contains(".entry") || statement.contains(".func")
}

fn entry(text: &str) -> Result<Entry, Code> {
    let (name, rest) = match text.split_once('(') {
        Some((name, rest)) => (name, rest.split_once(')').ok_or(Code::INVALID_PTX)?.0),
        None => (text, ""),
    };
    let name = name.split_whitespace().next().ok_or(Code::INVALID_PTX)?.to_owned();
    let parameters = rest.split(',').map(str::trim).filter(|it| !it.is_empty());
    let parameters = parameters.map(|it| {
        let (size, count, _) = declaration(it)?;
        Ok(size * count)
    });
    Ok(Entry { name, parameters: parameters.collect::<Result<_, _>>()? })
}

/// `.align 8 .b8 name[16]`: the size of an element, how many, the name.
fn declaration(text: &str) -> Result<(usize, usize, String), Code> {
    let size = text.split(|it: char| it.is_whitespace()).find_map(size).ok_or(Code::INVALID_PTX)?;
    let (text, count) = match text.split_once('[') {
        Some((text, rest)) => {
            let count = rest.split_once(']').ok_or(Code::INVALID_PTX)?.0.trim();
            (text, count.parse().map_err(|_| Code::INVALID_PTX)?)
        }
        None => (text, 1),
    };
    let name = text.split_whitespace().last().ok_or(Code::INVALID_PTX)?;
    Ok((size, count, name.to_owned()))
}

fn size(kind: &str) -> Option<usize> {
    match kind {
        ".u8" | ".s8" | ".b8" => Some(1),
        ".u16" | ".s16" | ".b16" | ".f16" => Some(2),
        ".u32" | ".s32" | ".b32" | ".f32" => Some(4),
        ".u64" | ".s64" | ".b64" | ".f64" => Some(8),
        _ => None,
    }
}

fn variable(text: &str) -> Result<Variable, Code> {
    let text = text.trim_end_matches(';');
    let (declared, initial) = text.split_once('=').unwrap_or((text, ""));
    let (size, count, name) = declaration(declared)?;
    let mut bytes = Vec::with_capacity(size * count);
    let initial = initial.trim().trim_start_matches('{').trim_end_matches('}');
    for value in initial.split(',').map(str::trim).filter(|it| !it.is_empty()) {
        let value = number(value).ok_or(Code::INVALID_PTX)?;
        bytes.extend_from_slice(&value.to_le_bytes()[..size]);
    }
    bytes.resize(size * count, 0);
    Ok(Variable { name, bytes })
}

/// `5`, `-5`, `0x1f`, `0f3F800000`, `0d3FF0000000000000`: its bits.
fn number(text: &str) -> Option<u64> {
    let hex = ["0x", "0X", "0f", "0F", "0d", "0D"].iter().find_map(|it| text.strip_prefix(it));
    match hex {
        Some(digits) => u64::from_str_radix(digits.trim_end_matches('U'), 16).ok(),
        None => text.parse::<i128>().ok().map(|it| it.cast_unsigned() as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 7.8\n.target sm_52\n.address_size 64\n";

    #[test]
    fn the_sizes_of_parameters_are_those_that_a_kernel_declares() {
        let source = format!(
            "{HEAD}// a comment with .entry in it\n.visible .entry sum(\n\t.param .u64 .ptr .align 4 sum_0,\n\
             \t.param .f32 sum_1, .param .align 8 .b8 sum_2[24]\n)\n.maxntid 32\n{{\n\t.reg .b32 %r<2>;\n\t{{ ret; }}\n}}\n\
             .visible .entry nothing()\n{{ ret; }}"
        );
        let ptx = Ptx::parse(&source).unwrap();
        assert_eq!(ptx.entries[0], Entry { name: "sum".into(), parameters: vec![8, 4, 24] });
        assert_eq!(ptx.entries[1], Entry { name: "nothing".into(), parameters: vec![] });
    }

    #[test]
    fn variables_have_what_they_are_given_first_and_zeros_after_it() {
        let source = format!(
            "{HEAD}.visible .global .align 4 .u32 answer = 42;\n.global .align 4 .f32 one = 0f3F800000;\n\
             .visible .const .align 2 .u16 list[3] = {{1, -1}};\n.visible .entry f(){{ret;}}\n.global .b8 last[2];"
        );
        let ptx = Ptx::parse(&source).unwrap();
        let bytes: Vec<_> = ptx.variables.iter().map(|it| (&*it.name, it.bytes.clone())).collect();
        assert_eq!(bytes[0], ("answer", 42_u32.to_le_bytes().to_vec()));
        assert_eq!(bytes[1], ("one", 1_f32.to_le_bytes().to_vec()));
        assert_eq!(bytes[2], ("list", vec![1, 0, 255, 255, 0, 0]));
        assert_eq!(bytes[3], ("last", vec![0, 0]));
        assert_eq!(ptx.entries.len(), 1);
    }

    #[test]
    fn what_is_no_module_is_refused() {
        for source in ["", "fn main() {}", ".version 7.8\n.target sm_52\n.visible .entry f() {"] {
            assert_eq!(Ptx::parse(source), Err(Code::INVALID_PTX), "{source:?}");
        }
    }
}
