//! A column: the values of one field of a batch, laid end to end, as they cross the sandbox.

/// The values of one field for every message of a batch.
///
/// Value `i` is `data[ends[i-1]..ends[i]]`; `nulls` is empty, or has one byte a value where 1 means none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Column {
    /// All values, end to end.
    pub data: Vec<u8>,
    /// Where each value ends in `data`.
    pub ends: Vec<u32>,
    /// Empty, or 1 for each value that is none.
    pub nulls: Vec<u8>,
}

/// What is wrong with a column that came from outside.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ColumnFault {
    /// Not as many values as there are messages.
    #[error("has {found} values instead of {expected}")]
    Length {
        /// Values that it has.
        found: usize,
        /// Values that it should have.
        expected: usize,
    },
    /// `nulls` is neither empty nor as long as `ends`.
    #[error("has {found} null marks for {expected} values")]
    Nulls {
        /// Marks that it has.
        found: usize,
        /// Values that it has.
        expected: usize,
    },
    /// An offset is smaller than the one before it, or past the end of the data.
    #[error("offset {index} is out of order or out of range")]
    Offset {
        /// Which offset.
        index: usize,
    },
    /// The last offset is not the end of the data.
    #[error("has {data} bytes, but its values end at {end}")]
    Tail {
        /// Bytes of data.
        data: usize,
        /// Last offset.
        end: usize,
    },
    /// A value that must be text is not UTF-8.
    #[error("value {index} is not UTF-8")]
    Utf8 {
        /// Which value.
        index: usize,
    },
    /// A value that must be there is none.
    #[error("value {index} is none")]
    Missing {
        /// Which value.
        index: usize,
    },
}

impl Column {
    /// An empty column with room for `values` values.
    #[must_use]
    pub fn with_capacity(values: usize, bytes: usize) -> Self {
        Self { data: Vec::with_capacity(bytes), ends: Vec::with_capacity(values), nulls: Vec::new() }
    }

    /// A column of the given texts, none of them none.
    pub fn of_texts<S: AsRef<str>>(texts: impl IntoIterator<Item = S>) -> Self {
        let mut column = Self::default();
        for text in texts {
            column.push(Some(text.as_ref().as_bytes()));
        }
        column
    }

    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether it has no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Value `index`; none if it is none, or out of range.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        if self.nulls.get(index).is_some_and(|mark| *mark == 1) {
            return None;
        }
        let start = match index.checked_sub(1) {
            None => 0,
            Some(before) => usize::try_from(*self.ends.get(before)?).ok()?,
        };
        let end = usize::try_from(*self.ends.get(index)?).ok()?;
        self.data.get(start..end)
    }

    /// Value `index` as text; none if it is none, out of range or not UTF-8.
    #[must_use]
    pub fn text(&self, index: usize) -> Option<&str> {
        self.get(index).and_then(|bytes| std::str::from_utf8(bytes).ok())
    }

    /// Appends a value. Data over 4 GiB is cut at what an offset can say: limits are far below.
    pub fn push(&mut self, value: Option<&[u8]>) {
        match value {
            Some(bytes) => {
                self.data.extend_from_slice(bytes);
                if !self.nulls.is_empty() {
                    self.nulls.push(0);
                }
            }
            None => {
                if self.nulls.is_empty() {
                    self.nulls.resize(self.ends.len(), 0);
                }
                self.nulls.push(1);
            }
        }
        self.ends.push(u32::try_from(self.data.len()).unwrap_or(u32::MAX));
    }

    /// Every value in turn.
    pub fn iter(&self) -> impl Iterator<Item = Option<&[u8]>> {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Checks a column from outside: as many values as expected, offsets in order and within the data.
    ///
    /// # Errors
    /// The first fault found.
    pub fn check(&self, expected: usize) -> Result<(), ColumnFault> {
        if self.ends.len() != expected {
            return Err(ColumnFault::Length { found: self.ends.len(), expected });
        }
        if !self.nulls.is_empty() && self.nulls.len() != expected {
            return Err(ColumnFault::Nulls { found: self.nulls.len(), expected });
        }
        let mut before = 0;
        for (index, end) in self.ends.iter().enumerate() {
            let end = usize::try_from(*end).unwrap_or(usize::MAX);
            if end < before || end > self.data.len() {
                return Err(ColumnFault::Offset { index });
            }
            before = end;
        }
        if before != self.data.len() {
            return Err(ColumnFault::Tail { data: self.data.len(), end: before });
        }
        Ok(())
    }

    /// [`Column::check`], and that every value is UTF-8.
    ///
    /// # Errors
    /// The first fault found.
    pub fn check_text(&self, expected: usize) -> Result<(), ColumnFault> {
        self.check(expected)?;
        // One pass over all data is enough where it is ASCII; offsets inside a character need the pass by value.
        if self.data.is_ascii() {
            return Ok(());
        }
        for index in 0..self.len() {
            if self.get(index).is_some_and(|bytes| std::str::from_utf8(bytes).is_err()) {
                return Err(ColumnFault::Utf8 { index });
            }
        }
        Ok(())
    }

    /// Checks that no value is none.
    ///
    /// # Errors
    /// [`ColumnFault::Missing`] with the first that is.
    pub fn check_present(&self) -> Result<(), ColumnFault> {
        match self.nulls.iter().position(|mark| *mark == 1) {
            Some(index) => Err(ColumnFault::Missing { index }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_pushed_comes_back(values in prop::collection::vec(prop::option::of(prop::collection::vec(any::<u8>(), 0..20)), 0..20)) {
            let mut column = Column::default();
            for value in &values {
                column.push(value.as_deref());
            }
            prop_assert_eq!(column.check(values.len()), Ok(()));
            let back: Vec<Option<Vec<u8>>> = column.iter().map(|value| value.map(<[u8]>::to_vec)).collect();
            prop_assert_eq!(back, values);
        }

        #[test]
        fn a_wild_column_is_refused_or_readable(data in prop::collection::vec(any::<u8>(), 0..30), ends in prop::collection::vec(0u32..40, 0..8),
                                                nulls in prop::collection::vec(0u8..3, 0..8)) {
            let column = Column { data, ends, nulls };
            if column.check(column.len()).is_ok() {
                let total: usize = (0..column.len()).filter_map(|index| column.get(index)).map(<[u8]>::len).sum();
                prop_assert!(total <= column.data.len());
            }
        }
    }

    #[test]
    fn text_is_checked_value_by_value() {
        // "é" cut in two by an offset: valid as a whole, not by value.
        let column = Column { data: "é".as_bytes().to_vec(), ends: vec![1, 2], nulls: vec![] };
        assert_eq!(column.check_text(2), Err(ColumnFault::Utf8 { index: 0 }));
    }
}
