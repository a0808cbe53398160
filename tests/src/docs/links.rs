//! Where links lead to: files of the checkout, and places on its pages. Other sites are not asked.

use super::page::{Link, Page};
use crate::places;
use anyhow::{Result, bail};
use std::path::{Component, Path, PathBuf};

/// Looks up every link of a page.
///
/// # Errors
/// If one leads nowhere: which, and why.
pub fn check(page: &Page) -> Result<()> {
    for link in &page.links {
        if let Some(fault) = fault(page, link)? {
            bail!("{}:{}: the link to {} leads nowhere: {fault}", page.path.display(), link.line, link.target);
        }
    }
    Ok(())
}

fn fault(page: &Page, link: &Link) -> Result<Option<String>> {
    if let Some((scheme, rest)) = link.target.split_once("://") {
        let fine = matches!(scheme, "https" | "http") && rest.split('/').next().is_some_and(|host| host.contains('.'));
        return Ok((!fine).then(|| "this is no address of the web".to_owned()));
    }
    let (file, anchor) = link.target.split_once('#').map_or((link.target.as_str(), None), |(file, anchor)| (file, Some(anchor)));
    let file = if file.is_empty() { page.path.clone() } else { page.path.parent().unwrap_or(Path::new("")).join(file) };
    let Some(file) = within(&file) else { return Ok(Some("it leaves the checkout".to_owned())) };
    if !places::checkout().join(&file).exists() {
        return Ok(Some(format!("there is no {}", file.display())));
    }
    let Some(anchor) = anchor else { return Ok(None) };
    if file.extension().is_none_or(|extension| extension != "md") {
        return Ok(Some(format!("{} has no headings", file.display())));
    }
    let known = if file == page.path { page.anchors.contains(anchor) } else { Page::read(&file)?.anchors.contains(anchor) };
    Ok((!known).then(|| format!("{} has no heading of that name", file.display())))
}

/// Without `..`; none where that leads out.
fn within(path: &Path) -> Option<PathBuf> {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => out.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                if !out.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_looked_up() {
        for (target, told) in [
            ("https://example.com/x", None),
            ("README.md", None),
            ("../README.md#rules-for-changing-it", Some("has no heading of that name")),
            ("../README.md#use-it", None),
            ("outbox.md#rules", Some("there is no wit/outbox.md")),
            ("#here", None),
            ("#there", Some("has no heading of that name")),
            ("outbox.wit", None),
            ("outbox.wit#x", Some("has no headings")),
            ("absent.md", Some("there is no wit/absent.md")),
            ("../../README.md", Some("leaves the checkout")),
            ("/etc/passwd", Some("leaves the checkout")),
            ("https://localhost/", Some("no address of the web")),
        ] {
            let page = Page::parse(Path::new("wit/README.md"), &format!("# Here\n\n[x]({target})\n")).unwrap();
            let fault = fault(&page, &page.links[0]).unwrap();
            match (told, fault) {
                (None, None) => {}
                (Some(told), Some(fault)) => assert!(fault.contains(told), "{target}: {fault}"),
                (told, fault) => panic!("{target}: expected {told:?}, found {fault:?}"),
            }
        }
    }
}
