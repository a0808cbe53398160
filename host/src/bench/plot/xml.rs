//! A strict reader of the little XML that plots are made of, for tests: it panics at whatever is not well-formed.

/// A tag with its attributes, and the text behind it.
struct Tag {
    name: String,
    attributes: Vec<(String, String)>,
    text: String,
}

/// The texts of the `text` elements.
pub(super) fn texts(svg: &str) -> Vec<String> {
    read(svg).into_iter().filter(|tag| tag.name == "text").map(|tag| tag.text.trim().to_owned()).collect()
}

/// The values of one attribute of all elements of a name.
pub(super) fn values(svg: &str, element: &str, attribute: &str) -> Vec<String> {
    let of = |tag: Tag| tag.attributes.into_iter().find(|(name, _)| name == attribute).map(|(_, value)| value);
    read(svg).into_iter().filter(|tag| tag.name == element).filter_map(of).collect()
}

fn read(svg: &str) -> Vec<Tag> {
    let mut tags: Vec<Tag> = Vec::new();
    let mut open = Vec::new();
    let mut parts = svg.trim().split('<');
    assert_eq!(parts.next(), Some(""), "begins with something else than a tag");
    for part in parts {
        let (tag, text) = part.split_once('>').expect("a tag ends");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "what is opened last is closed first");
        } else {
            let (inner, is_empty) = tag.strip_suffix('/').map_or((tag, false), |inner| (inner, true));
            let (name, rest) = inner.split_once(' ').unwrap_or((inner, ""));
            if !is_empty {
                open.push(name.to_owned());
            }
            tags.push(Tag { name: name.to_owned(), attributes: attributes(rest), text: plain(text) });
        }
        assert!(!open.is_empty() || text.trim().is_empty(), "a text outside of the document");
    }
    assert!(open.is_empty(), "not closed: {open:?}");
    assert_eq!(tags.first().map(|tag| tag.name.as_str()), Some("svg"));
    tags
}

fn attributes(mut rest: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    while !rest.trim().is_empty() {
        let (name, after) = rest.trim_start().split_once("=\"").expect("an attribute has a value");
        let (value, after) = after.split_once('"').expect("a value ends");
        found.push((name.to_owned(), plain(value)));
        rest = after;
    }
    found
}

fn plain(text: &str) -> String {
    assert!(!text.chars().any(|character| character.is_control() && character != '\n'), "a control character");
    let mut out = text.to_owned();
    for (name, character) in [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'")] {
        out = out.replace(name, character);
    }
    let without = out.replace("&amp;", "");
    assert!(!without.contains('&'), "an unknown entity in {text:?}");
    out.replace("&amp;", "&")
}
