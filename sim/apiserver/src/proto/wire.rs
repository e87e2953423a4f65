//! Protobuf wire format.

/// Errors in Go's wording.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("unexpected EOF")]
    Short,
    #[error("proto: integer overflow")]
    Overflow,
    #[error("proto: illegal tag {0}")]
    Tag(u64),
    #[error("proto: illegal wireType {0}")]
    WireType(u64),
    #[error("proto: wrong wireType = {0} for field {1}")]
    Mismatch(u8, String),
    #[error("proto: {1} is no value of field {0}")]
    Value(String, String),
    #[error("proto: messages within messages are too deep")]
    Deep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32,
}

impl Wire<'_> {
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Varint(_) => 0,
            Self::Fixed64(_) => 1,
            Self::Bytes(_) => 2,
            Self::Fixed32 => 5,
        }
    }
}

enum Item<'a> {
    Value(u64, Wire<'a>),
    GroupBegins,
    GroupEnds(u64),
}

/// Fields in order; skips groups, unused by Kubernetes.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn varint(&mut self) -> Result<u64, Malformed> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(Malformed::Short)?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Malformed::Overflow)
    }

    fn take(&mut self, many: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(many).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn item(&mut self) -> Result<Item<'a>, Malformed> {
        let tag = self.varint()?;
        let number = tag >> 3;
        if number == 0 || number > u64::from(u32::MAX >> 3) {
            return Err(Malformed::Tag(number));
        }
        let wire = match tag & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => {
                let bytes = self.take(8)?.try_into().map_err(|_| Malformed::Short)?;
                Wire::Fixed64(u64::from_le_bytes(bytes))
            }
            2 => {
                let many = usize::try_from(self.varint()?).map_err(|_| Malformed::Short)?;
                Wire::Bytes(self.take(many)?)
            }
            3 => return Ok(Item::GroupBegins),
            4 => return Ok(Item::GroupEnds(number)),
            5 => {
                self.take(4)?;
                Wire::Fixed32
            }
            other => return Err(Malformed::WireType(other)),
        };
        Ok(Item::Value(number, wire))
    }

    fn field(&mut self) -> Result<Option<(u64, Wire<'a>)>, Malformed> {
        // Group nesting.
        let mut depth = 0_usize;
        loop {
            if self.0.is_empty() {
                return if depth == 0 { Ok(None) } else { Err(Malformed::Short) };
            }
            match self.item()? {
                Item::Value(number, wire) if depth == 0 => return Ok(Some((number, wire))),
                Item::Value(..) => {}
                Item::GroupBegins => depth += 1,
                Item::GroupEnds(number) => depth = depth.checked_sub(1).ok_or(Malformed::Tag(number))?,
            }
        }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Wire<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.field().transpose();
        if matches!(next, Some(Err(_))) {
            self.0 = &[];
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> Result<Vec<(u64, Wire<'_>)>, Malformed> {
        Fields(bytes).collect()
    }

    #[test]
    fn fields_are_read_in_order_and_groups_are_skipped() {
        let bytes =
            [0x08, 0x96, 0x01, 0x1b, 0x08, 0x01, 0x1c, 0x12, 0x01, b'a', 0x21, 1, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(
            all(&bytes).unwrap(),
            [(1, Wire::Varint(150)), (2, Wire::Bytes(b"a")), (4, Wire::Fixed64(1))]
        );
    }

    #[test]
    fn truncated_or_invalid_wire_data_is_an_error() {
        assert_eq!(all(&[0x08]), Err(Malformed::Short));
        assert_eq!(all(&[0x12, 0x02, b'a']), Err(Malformed::Short));
        assert_eq!(all(&[0x1b]), Err(Malformed::Short));
        assert_eq!(all(&[0x00]), Err(Malformed::Tag(0)));
        assert_eq!(all(&[0x1c]), Err(Malformed::Tag(3)));
        assert_eq!(all(&[0x0f]), Err(Malformed::WireType(7)));
        assert_eq!(all(&[0xff; 11]), Err(Malformed::Overflow));
        let huge = [0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(all(&huge), Err(Malformed::Short));
    }
}
