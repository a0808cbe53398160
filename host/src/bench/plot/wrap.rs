//! Lines of a text that is too long for one. Pictures have none of their own: their library draws a text as it is.

/// The lines, none of them longer than so many characters. Broken at spaces; a longer word is broken where the line ends.
pub(super) fn wrap(text: &str, most: usize) -> Vec<String> {
    let most = most.max(1);
    let mut lines = vec![String::new()];
    let mut room = most;
    for word in text.split_whitespace().flat_map(|word| pieces(word, most)) {
        let length = word.chars().count();
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(&word),
            Some(line) if length < room => {
                line.push(' ');
                line.push_str(&word);
                room -= 1;
            }
            _ => {
                lines.push(word);
                room = most;
            }
        }
        room = room.saturating_sub(length);
    }
    lines
}

fn pieces(word: &str, most: usize) -> Vec<String> {
    let characters: Vec<char> = word.chars().collect();
    characters.chunks(most).map(|piece| piece.iter().collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_at_spaces() {
        assert_eq!(wrap("ab cd ef", 5), ["ab cd", "ef"]);
        assert_eq!(wrap("ab cd ef", 4), ["ab", "cd", "ef"]);
        assert_eq!(wrap("ab cd ef", 8), ["ab cd ef"]);
        assert_eq!(wrap("a äöüäöü b", 4), ["a", "äöüä", "öü b"]);
        assert_eq!(wrap("", 4), [""]);
    }
}
