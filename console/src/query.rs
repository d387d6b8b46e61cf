//! The part of an address behind `?`: names and values. A name that is not known, or stands there
//! twice, is an error: a question with a word left out has another answer.

/// The values of a query, each taken once.
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(text: Option<&str>) -> Result<Self, String> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for part in text.unwrap_or_default().split('&') {
            if part.is_empty() {
                continue;
            }
            let (name, value) = part.split_once('=').unwrap_or((part, "true"));
            let (name, value) = (decode(name)?, decode(&value.replace('+', " "))?);
            if pairs.iter().any(|(known, _)| *known == name) {
                return Err(format!("the parameter {name} is there twice"));
            }
            pairs.push((name, value));
        }
        Ok(Self(pairs))
    }

    /// Takes a text.
    pub(crate) fn text(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.swap_remove(at).1).filter(|value| !value.is_empty())
    }

    /// Takes a value; `expected` is said of one that is none.
    pub(crate) fn value<T>(
        &mut self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        let value = read(&text);
        value
            .map(Some)
            .ok_or_else(|| format!("{name}={text:?}: expected {expected}"))
    }

    /// Takes a word that is true or false.
    pub(crate) fn flag(&mut self, name: &str) -> Result<bool, String> {
        let value = self.value(name, "true or false", |text| text.parse().ok())?;
        Ok(value.unwrap_or_default())
    }

    /// Nothing may be left.
    pub(crate) fn finish(self, known: &str) -> Result<(), String> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) if known.is_empty() => {
                Err(format!("the parameter {name} is not known; there are none"))
            }
            Some((name, _)) => Err(format!(
                "the parameter {name} is not known; there are {known}"
            )),
        }
    }
}

/// A text without percent-encoding (RFC 3986 §2.1).
pub(crate) fn decode(text: &str) -> Result<String, String> {
    let wrong = || format!("{text:?} is not percent-encoded text");
    let mut octets = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(octet) = rest.next() {
        if octet != b'%' {
            octets.push(octet);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        let (high, low) = (digit().ok_or_else(wrong)?, digit().ok_or_else(wrong)?);
        octets.push(u8::try_from(high << 4 | low).map_err(|_| wrong())?);
    }
    String::from_utf8(octets).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_decoded_or_refused() {
        assert_eq!(decode("10.0.0.0%2F8").as_deref(), Ok("10.0.0.0/8"));
        assert_eq!(decode("%C3%A4").as_deref(), Ok("ä"));
        for wrong in ["%", "%2", "%zz", "%ff"] {
            assert!(decode(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn nothing_of_a_query_is_ignored() {
        let mut query = Query::parse(Some("a=1&b&&c=x+y")).expect("a query");
        assert_eq!(query.text("c").as_deref(), Some("x y"));
        assert_eq!(query.flag("b"), Ok(true));
        let left = query.finish("b and c");
        assert!(left.is_err_and(|e| e == "the parameter a is not known; there are b and c"));
        assert!(Query::parse(Some("a=1&a=2")).is_err());
    }
}
