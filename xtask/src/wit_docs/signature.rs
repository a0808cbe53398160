//! Functions and types as they are written in the file, with links to types where that is wanted.

use super::{anchor, full_name};
use anyhow::{Context, Result, bail};
use wit_parser::{Function, FunctionKind, Handle, Resolve, Type, TypeDefKind};

/// A piece of a type.
enum Piece {
    /// Written as it is.
    Text(String),
    /// A type with a name: as it is called where it is used, and in full where it is told of.
    Name { short: String, full: String },
}

/// `name: func(parameter: type, ...) -> type;`
pub(super) fn function(resolve: &Resolve, function: &Function) -> Result<String> {
    let (kind, hidden) = match function.kind {
        FunctionKind::Freestanding => ("func", 0),
        // The first parameter is the resource itself.
        FunctionKind::Method(_) => ("func", 1),
        FunctionKind::Static(_) => ("static func", 0),
        ref other => bail!("{}: {other:?} is not rendered", function.name),
    };
    let mut parameters = Vec::new();
    for parameter in function.params.iter().skip(hidden) {
        parameters.push(format!("{}: {}", parameter.name, type_name(resolve, parameter.ty)?));
    }
    let result = function.result.map(|result| Ok::<_, anyhow::Error>(format!(" -> {}", type_name(resolve, result)?))).transpose()?;
    Ok(format!("{}: {kind}({}){};", function.item_name(), parameters.join(", "), result.unwrap_or_default()))
}

/// As in the file.
pub(super) fn type_name(resolve: &Resolve, of: Type) -> Result<String> {
    let pieces = pieces(resolve, of)?;
    Ok(pieces
        .into_iter()
        .map(|piece| match piece {
            Piece::Text(text) => text,
            Piece::Name { short, .. } => short,
        })
        .collect())
}

/// As in the file, in Markdown, with links to what has a name.
pub(super) fn linked(resolve: &Resolve, of: Type) -> Result<String> {
    let mut out = String::new();
    let mut text = String::new();
    let flush = |text: &mut String, out: &mut String| {
        if !text.is_empty() {
            out.push_str(&format!("`{text}`"));
            text.clear();
        }
    };
    for piece in pieces(resolve, of)? {
        match piece {
            Piece::Text(more) => text.push_str(&more),
            Piece::Name { short, full } => {
                flush(&mut text, &mut out);
                out.push_str(&format!("[`{short}`](#{})", anchor(&full)));
            }
        }
    }
    flush(&mut text, &mut out);
    Ok(out)
}

/// Every name in a type, in full.
pub(super) fn names_in(resolve: &Resolve, of: Type) -> Result<Vec<String>> {
    let pieces = pieces(resolve, of)?;
    Ok(pieces
        .into_iter()
        .filter_map(|piece| match piece {
            Piece::Name { full, .. } => Some(full),
            Piece::Text(_) => None,
        })
        .collect())
}

fn pieces(resolve: &Resolve, of: Type) -> Result<Vec<Piece>> {
    let word = match of {
        Type::Bool => "bool",
        Type::U8 => "u8",
        Type::U16 => "u16",
        Type::U32 => "u32",
        Type::U64 => "u64",
        Type::S8 => "s8",
        Type::S16 => "s16",
        Type::S32 => "s32",
        Type::S64 => "s64",
        Type::F32 => "f32",
        Type::F64 => "f64",
        Type::Char => "char",
        Type::String => "string",
        Type::ErrorContext => "error-context",
        Type::Id(id) => return of_definition(resolve, id),
    };
    Ok(vec![Piece::Text(word.to_owned())])
}

fn of_definition(resolve: &Resolve, id: wit_parser::TypeId) -> Result<Vec<Piece>> {
    let of = resolve.types.get(id).context("a type is lost")?;
    if let Some(short) = &of.name {
        // Where it is used from another interface, it is told of in that one.
        let mut told = of;
        while let TypeDefKind::Type(Type::Id(to)) = told.kind {
            match resolve.types.get(to) {
                Some(next) if next.name.is_some() => told = next,
                _ => break,
            }
        }
        return Ok(vec![Piece::Name { short: short.clone(), full: full_name(resolve, told)? }]);
    }
    let generic = |name: &str, arguments: &[Option<Type>]| -> Result<Vec<Piece>> {
        let mut out = vec![Piece::Text(format!("{name}<"))];
        for (at, argument) in arguments.iter().enumerate() {
            if at > 0 {
                out.push(Piece::Text(", ".to_owned()));
            }
            match argument {
                Some(argument) => out.extend(pieces(resolve, *argument)?),
                None => out.push(Piece::Text("_".to_owned())),
            }
        }
        out.push(Piece::Text(">".to_owned()));
        Ok(out)
    };
    match &of.kind {
        TypeDefKind::List(of) => generic("list", &[Some(*of)]),
        TypeDefKind::Option(of) => generic("option", &[Some(*of)]),
        TypeDefKind::Tuple(of) => generic("tuple", &of.types.iter().copied().map(Some).collect::<Vec<_>>()),
        TypeDefKind::Result(of) => match (of.ok, of.err) {
            (None, None) => Ok(vec![Piece::Text("result".to_owned())]),
            (ok, None) => generic("result", &[ok]),
            (ok, error) => generic("result", &[ok, error]),
        },
        TypeDefKind::Handle(Handle::Own(to)) => of_definition(resolve, *to),
        TypeDefKind::Handle(Handle::Borrow(to)) => generic("borrow", &[Some(Type::Id(*to))]),
        other => bail!("a {} without a name is not rendered", other.as_str()),
    }
}
