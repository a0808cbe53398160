//! `docs/wit.md`: the WIT package as a reference, rendered from `wit/*.wit`. CI fails where the page is not current.
//!
//! - [`signature`]: functions and types written as in the file
//!
//! Headings name each thing in full (`storage.claim`), so that the anchors that GitHub makes of them are unique, and links need no
//! markup of their own.

mod signature;

use anyhow::{Context, Result, anyhow, bail};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use wit_parser::{
    Docs, Function, FunctionKind, Interface, Resolve, SourceMap, Type, TypeDef, TypeDefKind, TypeOwner, World, WorldItem, WorldKey,
};

/// Where the package is, and where its reference goes, from the root of the checkout.
const SOURCES: [&str; 2] = ["wit/outbox.wit", "wit/fan-out.wit"];
const PAGE: &str = "docs/wit.md";

/// Writes the page.
///
/// # Errors
/// If the package cannot be read, or the page not be written.
pub(crate) fn write(root: &Path) -> Result<()> {
    let page = root.join(PAGE);
    fs::write(&page, render(root)?).with_context(|| format!("cannot write {}", page.display()))
}

/// Compares the page with what would be written.
///
/// # Errors
/// If they differ.
pub(crate) fn check(root: &Path) -> Result<()> {
    let page = fs::read_to_string(root.join(PAGE)).with_context(|| format!("cannot read {PAGE}"))?;
    if page != render(root)? {
        bail!("{PAGE} is not what {} say: run `cargo xtask wit-docs` and commit the page", SOURCES.join(" and "));
    }
    Ok(())
}

fn render(root: &Path) -> Result<String> {
    let read = |file: &&'static str| {
        let text = fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {file}"))?;
        Ok((*file, text))
    };
    page(&SOURCES.iter().map(read).collect::<Result<Vec<_>>>()?)
}

/// The reference of a package of these files: name and text of each.
fn page(files: &[(&str, String)]) -> Result<String> {
    let (mut resolve, mut sources) = (Resolve::default(), SourceMap::default());
    files.iter().for_each(|(file, text)| sources.push_str(file, text));
    let group = sources.parse().map_err(|(_, error)| anyhow!("{error}"))?;
    let id = resolve.push_group(group)?;
    let package = resolve.packages.get(id).context("the package is lost")?;
    let mut page = Page { resolve: &resolve, out: String::new() };
    page.head(&package.name.to_string(), &package.docs)?;
    let worlds: Vec<&World> = package.worlds.values().filter_map(|id| resolve.worlds.get(*id)).collect();
    let interfaces: Vec<&Interface> = package.interfaces.values().filter_map(|id| resolve.interfaces.get(*id)).collect();
    page.worlds(&worlds)?;
    page.index(&interfaces)?;
    for interface in interfaces {
        page.interface(interface)?;
    }
    Ok(page.out)
}

struct Page<'a> {
    resolve: &'a Resolve,
    out: String,
}

impl Page<'_> {
    fn head(&mut self, package: &str, docs: &Docs) -> Result<()> {
        writeln!(self.out, "<!-- Written by `cargo xtask wit-docs` from wit/*.wit: change those files, not this one. -->\n")?;
        writeln!(self.out, "# The contract: `{package}`\n")?;
        self.paragraphs(docs)?;
        writeln!(
            self.out,
            "This is {} as a reference. The rules by which it changes are in [wit/README.md](../wit/README.md); how an adapter is written \
             against it, in [writing-an-adapter.md](writing-an-adapter.md).\n",
            SOURCES.map(|file| format!("[`{file}`](../{file})")).join(" and ")
        )?;
        Ok(())
    }

    fn worlds(&mut self, worlds: &[&World]) -> Result<()> {
        writeln!(
            self.out,
            "## Worlds\n\nA component is made for one of these. It exports what is named, and may import what is offered.\n"
        )?;
        writeln!(self.out, "| world | exports | imports | |\n|---|---|---|---|")?;
        for world in worlds {
            let (exports, imports) = (self.listed(&world.exports), self.listed(&world.imports));
            writeln!(self.out, "| `{}` | {exports} | {imports} | {} |", world.name, in_a_cell(&world.docs))?;
        }
        writeln!(self.out)?;
        Ok(())
    }

    /// Links to interfaces that have functions. Those with types only are imported by the way.
    fn listed<'k>(&self, items: impl IntoIterator<Item = (&'k WorldKey, &'k WorldItem)>) -> String {
        let interface = |item: &WorldItem| match item {
            WorldItem::Interface { id, .. } => self.resolve.interfaces.get(*id),
            _ => None,
        };
        let with_functions = items.into_iter().filter_map(|(_, item)| interface(item)).filter(|interface| !interface.functions.is_empty());
        let links: Vec<String> = with_functions.filter_map(|interface| interface.name.as_deref()).map(link_to).collect();
        links.join(", ")
    }

    fn index(&mut self, interfaces: &[&Interface]) -> Result<()> {
        writeln!(self.out, "## Interfaces\n\n| interface | functions | types |\n|---|---|---|")?;
        for interface in interfaces {
            let name = name_of(interface)?;
            let functions = interface.functions.values().map(|function| self.shown_function(name, function)).collect::<Result<Vec<_>>>()?;
            let functions: Vec<String> = functions.iter().map(|full| named(full)).collect();
            let types: Vec<String> =
                self.own_types(interface).filter_map(|of| of.name.as_deref()).map(|of| named(&format!("{name}.{of}"))).collect();
            writeln!(self.out, "| {} | {} | {} |", link_to(name), functions.join(", "), types.join(", "))?;
        }
        writeln!(self.out)?;
        Ok(())
    }

    fn interface(&mut self, interface: &Interface) -> Result<()> {
        let name = name_of(interface)?;
        writeln!(self.out, "## `{name}`\n")?;
        self.paragraphs(&interface.docs)?;
        let types = self.own_types(interface).cloned().collect::<Vec<_>>();
        // Before its methods.
        let (resources, others): (Vec<_>, Vec<_>) = types.iter().partition(|of| of.kind == TypeDefKind::Resource);
        for of in resources {
            self.named_type(name, of)?;
        }
        for function in interface.functions.values() {
            self.function(name, function)?;
        }
        for of in others {
            self.named_type(name, of)?;
        }
        Ok(())
    }

    /// Without those that are used from another interface.
    fn own_types<'i>(&'i self, interface: &'i Interface) -> impl Iterator<Item = &'i TypeDef> {
        let used = |of: &TypeDef| matches!(of.kind, TypeDefKind::Type(Type::Id(id)) if self.resolve.types.get(id).is_some_and(|to| to.name == of.name));
        interface.types.values().filter_map(|id| self.resolve.types.get(*id)).filter(move |of| !used(of))
    }

    fn function(&mut self, interface: &str, function: &Function) -> Result<()> {
        writeln!(self.out, "### `{}`\n", self.shown_function(interface, function)?)?;
        writeln!(self.out, "```wit\n{}\n```\n", signature::function(self.resolve, function)?)?;
        self.paragraphs(&function.docs)?;
        let parts = function.params.iter().map(|parameter| parameter.ty).chain(function.result);
        self.types_of(parts)
    }

    /// `interface.function`, or `interface.resource.function`.
    fn shown_function(&self, interface: &str, function: &Function) -> Result<String> {
        let resource = match function.kind {
            FunctionKind::Method(id) | FunctionKind::Static(id) | FunctionKind::Constructor(id) => self.resolve.types.get(id),
            FunctionKind::Freestanding => None,
            ref other => bail!("{interface}.{}: {other:?} is not rendered", function.name),
        };
        let resource = resource.and_then(|resource| resource.name.as_deref());
        let name = function.item_name();
        Ok(resource.map_or_else(|| format!("{interface}.{name}"), |resource| format!("{interface}.{resource}.{name}")))
    }

    fn named_type(&mut self, interface: &str, of: &TypeDef) -> Result<()> {
        let name = of.name.as_deref().context("a type of an interface has no name")?;
        writeln!(self.out, "### `{interface}.{name}`\n")?;
        self.paragraphs(&of.docs)?;
        match &of.kind {
            TypeDefKind::Record(record) => {
                let rows = record.fields.iter().map(|field| (&field.name, Some(field.ty), &field.docs)).collect::<Vec<_>>();
                self.table("A record of", "field", &rows)
            }
            TypeDefKind::Variant(variant) => {
                let rows = variant.cases.iter().map(|case| (&case.name, case.ty, &case.docs)).collect::<Vec<_>>();
                self.table("A variant, one of", "case", &rows)
            }
            TypeDefKind::Enum(of) => {
                let rows = of.cases.iter().map(|case| (&case.name, None, &case.docs)).collect::<Vec<_>>();
                self.table("An enum, one of", "case", &rows)
            }
            TypeDefKind::Resource => {
                writeln!(self.out, "A resource: the host keeps it, and drops it when the guest does.\n")?;
                Ok(())
            }
            TypeDefKind::Type(to) => {
                writeln!(self.out, "```wit\ntype {name} = {};\n```\n", signature::type_name(self.resolve, *to)?)?;
                self.types_of([*to])
            }
            other => bail!("{interface}.{name}: a {} is not rendered", other.as_str()),
        }
    }

    /// Fields or cases: what they hold, and what is said of them. Columns that would be empty are left out.
    fn table(&mut self, kind: &str, of: &str, rows: &[(&String, Option<Type>, &Docs)]) -> Result<()> {
        let (typed, told) = (rows.iter().any(|row| row.1.is_some()), rows.iter().any(|row| !row.2.is_empty()));
        if !typed && !told {
            let names: Vec<String> = rows.iter().map(|(name, ..)| format!("`{name}`")).collect();
            writeln!(self.out, "{kind} {}.\n", names.join(", "))?;
            return Ok(());
        }
        let columns = [Some(of), typed.then_some("type"), told.then_some("")];
        let columns: Vec<&str> = columns.into_iter().flatten().collect();
        writeln!(self.out, "{kind}\n\n| {} |\n|{}", columns.join(" | "), "---|".repeat(columns.len()))?;
        for (name, holds, docs) in rows {
            let holds = holds.map(|holds| signature::linked(self.resolve, holds)).transpose()?.unwrap_or_default();
            let cells = [Some(format!("`{name}`")), typed.then_some(holds), told.then(|| in_a_cell(docs))];
            writeln!(self.out, "| {} |", cells.into_iter().flatten().collect::<Vec<_>>().join(" | "))?;
        }
        writeln!(self.out)?;
        Ok(())
    }

    /// Where to read on: every type with a name in these.
    fn types_of(&mut self, parts: impl IntoIterator<Item = Type>) -> Result<()> {
        let mut names = Vec::new();
        for part in parts {
            for name in signature::names_in(self.resolve, part)? {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        if !names.is_empty() {
            let links: Vec<String> = names.iter().map(|name| named(name)).collect();
            writeln!(self.out, "Types: {}\n", links.join(", "))?;
        }
        Ok(())
    }

    fn paragraphs(&mut self, docs: &Docs) -> Result<()> {
        if let Some(text) = &docs.contents {
            writeln!(self.out, "{}\n", text.trim_end())?;
        }
        Ok(())
    }
}

fn name_of(interface: &Interface) -> Result<&str> {
    interface.name.as_deref().context("an interface of the package has no name")
}

/// `interface.type`, as its heading says it.
fn full_name(resolve: &Resolve, of: &TypeDef) -> Result<String> {
    let name = of.name.as_deref().context("a type has no name")?;
    let TypeOwner::Interface(id) = of.owner else { bail!("{name} belongs to no interface") };
    let interface = resolve.interfaces.get(id).context("an interface is lost")?;
    Ok(format!("{}.{name}", name_of(interface)?))
}

/// The anchor that GitHub makes of a heading that is a name.
fn anchor(name: &str) -> String {
    name.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')).collect()
}

fn link_to(name: &str) -> String {
    format!("[`{name}`](#{})", anchor(name))
}

/// A link that shows the last part of a full name.
fn named(full: &str) -> String {
    let short = full.split_once('.').map_or(full, |(_, short)| short);
    format!("[`{short}`](#{})", anchor(full))
}

fn in_a_cell(docs: &Docs) -> String {
    docs.contents.as_deref().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKAGE: &str = "\
/// What it is for.
package a:b@1.2.3;

interface words {
    /// A number
    /// of things | others.
    record amount { /// How many.
        count: u32, of: option<list<kind>> }
    enum kind { apple, pear }
    variant end { good, bad(string) }
}
interface work {
    use words.{amount, end};
    /// Does it.
    ///
    /// Twice.
    do-it: func(much: amount, names: list<string>) -> result<list<end>, string>;
    resource tool { open: static func() -> tool; use-it: func(); }
}
world w { import words; export work; }
";

    #[test]
    fn a_package_becomes_a_page() {
        let page = page(&[(SOURCES[0], PACKAGE.to_owned())]).unwrap();
        for part in [
            "# The contract: `a:b@1.2.3`\n\nWhat it is for.\n",
            "| `w` | [`work`](#work) |  |  |",
            "| [`words`](#words) |  | [`kind`](#wordskind), [`amount`](#wordsamount), [`end`](#wordsend) |",
            "| [`work`](#work) | [`do-it`](#workdo-it), [`tool.open`](#worktoolopen), [`tool.use-it`](#worktooluse-it) | [`tool`](#worktool) |",
            "### `work.do-it`\n\n```wit\ndo-it: func(much: amount, names: list<string>) -> result<list<end>, string>;\n```\n\nDoes it.\n\nTwice.\n",
            "Types: [`amount`](#wordsamount), [`end`](#wordsend)\n",
            "### `words.amount`\n\nA number\nof things | others.\n\nA record of\n\n| field | type |  |\n|---|---|---|\n| `count` | `u32` | How many. |\n",
            "| `of` | `option<list<`[`kind`](#wordskind)`>>` |  |",
            "An enum, one of `apple`, `pear`.",
            "| `bad` | `string` |",
            "open: static func() -> tool;",
            "use-it: func();",
        ] {
            assert!(page.contains(part), "{part:?} is not in\n{page}");
        }
    }

    #[test]
    fn a_page_that_is_not_current_is_named_and_mended() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["wit", "docs"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        fs::write(folder.path().join(SOURCES[0]), PACKAGE).unwrap();
        fs::write(folder.path().join(SOURCES[1]), "package a:b@1.2.3;\ninterface more { use words.{kind}; all: func() -> list<kind>; }\n")
            .unwrap();
        fs::write(folder.path().join(PAGE), "old").unwrap();
        assert!(check(folder.path()).unwrap_err().to_string().contains("cargo xtask wit-docs"));
        write(folder.path()).unwrap();
        check(folder.path()).unwrap();
        let page = fs::read_to_string(folder.path().join(PAGE)).unwrap();
        assert!(page.contains("### `work.do-it`") && page.contains("### `more.all`"), "{page}");
    }

    #[test]
    fn what_cannot_be_rendered_is_an_error() {
        let error = page(&[(SOURCES[0], "package a:b@1.0.0;\ninterface i { flags f { a, b } }\n".to_owned())]).unwrap_err().to_string();
        assert_eq!(error, "i.f: a flags is not rendered");
    }
}
