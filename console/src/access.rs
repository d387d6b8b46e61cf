//! Who may ask. On the loopback address whoever is on the machine, as long as the browser was sent
//! there by its own name: a page of somebody else's whose name leads to 127.0.0.1 is refused (DNS
//! rebinding). Everywhere else who knows the token, or has a certificate of the authority.

use std::fmt;
use std::net::IpAddr;

/// Fewest octets of a token.
const SHORTEST: usize = 16;
/// Most octets of a token.
const LONGEST: usize = 512;

/// A secret that is never printed.
pub struct Token(Vec<u8>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// The content of a file of one line.
    ///
    /// # Errors
    /// It is too short to be a secret, or is no line of visible characters.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if !(SHORTEST..=LONGEST).contains(&text.len()) {
            return Err(format!(
                "it has {} octets, and a token has {SHORTEST} to {LONGEST}; `openssl rand -hex 32` makes one",
                text.len()
            ));
        }
        if !text.bytes().all(|octet| octet.is_ascii_graphic()) {
            return Err("a token is one line of visible ASCII characters".to_owned());
        }
        Ok(Self(text.into()))
    }

    /// Compares in a time that does not depend on where the two differ.
    fn is(&self, given: &[u8]) -> bool {
        let mut differs = given.len() ^ self.0.len();
        for (octet, wanted) in given.iter().zip(self.0.iter().cycle()) {
            differs |= usize::from(octet ^ wanted);
        }
        std::hint::black_box(differs) == 0
    }
}

/// Who may ask.
#[derive(Debug)]
pub enum Access {
    /// Whoever reaches the loopback address under its own name.
    Loopback,
    /// Who knows the token.
    Token(Token),
    /// Who has a certificate of the authority, or knows the token, where there is one.
    Certificate(Option<Token>),
}

/// What a request says of who sent it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller<'a> {
    /// The header `Host`.
    pub host: Option<&'a str>,
    /// The header `Authorization`.
    pub authorization: Option<&'a str>,
    /// The connection has a client's certificate, and the authority has signed it.
    pub is_certified: bool,
}

/// Why a request is not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denial {
    /// It was sent to a name that is not the loopback's.
    Host(String),
    /// It has no token, or a wrong one.
    Token,
    /// It has no certificate, and no token would do.
    Certificate,
    /// It has neither a certificate nor the token.
    Neither,
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(host) => write!(
                f,
                "the request was sent to {host:?}; without a token the console answers to localhost, 127.0.0.1 and [::1] alone"
            ),
            Self::Token => f.write_str(
                "the token is missing or wrong; send `Authorization: Bearer TOKEN` with the content of CARACAL_CONSOLE_TOKEN_FILE",
            ),
            Self::Certificate => f.write_str(
                "a client's certificate is needed, signed by the authority in CARACAL_CONSOLE_CA_CERT_FILE of this node",
            ),
            Self::Neither => f.write_str(
                "there is neither a client's certificate of the authority in CARACAL_CONSOLE_CA_CERT_FILE of this node, nor the token; send `Authorization: Bearer TOKEN` with the content of CARACAL_CONSOLE_TOKEN_FILE",
            ),
        }
    }
}

impl Access {
    /// Judges a request by who sent it. `is_public`: what was asked for is the page itself, which
    /// says nothing of the cluster.
    ///
    /// # Errors
    /// [`Denial`].
    pub fn check(&self, caller: Caller<'_>, is_public: bool) -> Result<(), Denial> {
        let knows = |token: &Token| {
            let given = caller.authorization.and_then(bearer);
            given.is_some_and(|given| token.is(given.as_bytes()))
        };
        match self {
            Self::Loopback => match caller.host.filter(|host| is_loopback(host)) {
                Some(_) => Ok(()),
                None => Err(Denial::Host(caller.host.unwrap_or_default().to_owned())),
            },
            Self::Token(_) | Self::Certificate(_) if is_public => Ok(()),
            Self::Certificate(_) if caller.is_certified => Ok(()),
            Self::Token(token) | Self::Certificate(Some(token)) if knows(token) => Ok(()),
            Self::Token(_) => Err(Denial::Token),
            Self::Certificate(None) => Err(Denial::Certificate),
            Self::Certificate(Some(_)) => Err(Denial::Neither),
        }
    }
}

/// The credentials of the scheme `Bearer` (RFC 6750); the scheme's case does not matter.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then_some(token.trim())
}

/// A `Host` that is the loopback's: a name or an address, and a port.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(rest, |(address, _)| address),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name
            .parse()
            .is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_answers_to_its_own_names_alone() {
        let check = |host| {
            let caller = Caller {
                host,
                ..Caller::default()
            };
            Access::Loopback.check(caller, false)
        };
        for host in [
            "localhost",
            "LOCALHOST:9090",
            "127.0.0.1:80",
            "127.1.2.3",
            "[::1]:9",
            "[::1]",
        ] {
            assert_eq!(check(Some(host)), Ok(()), "{host}");
        }
        for host in [
            "evil.example:9090",
            "localhost.evil.example",
            "10.0.0.1",
            "[fd00::1]:9",
            "",
            "::1",
            "127.0.0.1.nip.io:80",
        ] {
            let denied = Err(Denial::Host(host.to_owned()));
            assert_eq!(check(Some(host)), denied, "{host}");
        }
        assert_eq!(check(None), Err(Denial::Host(String::new())));
        // The page too: what it shows is asked for by its own script.
        let caller = Caller {
            host: Some("evil.example"),
            ..Caller::default()
        };
        assert!(Access::Loopback.check(caller, true).is_err());
    }

    #[test]
    fn elsewhere_the_token_counts_and_the_name_does_not() {
        let access = Access::Token(Token::parse("0123456789abcdef\n").expect("a token"));
        let check = |authorization: Option<&str>| access.check(sent(authorization, false), false);
        assert_eq!(check(Some("Bearer 0123456789abcdef")), Ok(()));
        assert_eq!(check(Some("bearer  0123456789abcdef ")), Ok(()));
        for wrong in [
            "Bearer 0123456789abcdee",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0123456789abcdef",
            "Bearer ",
            "Basic 0123456789abcdef",
            "0123456789abcdef",
        ] {
            assert_eq!(check(Some(wrong)), Err(Denial::Token), "{wrong}");
        }
        assert_eq!(check(None), Err(Denial::Token));
        assert_eq!(access.check(Caller::default(), true), Ok(()));
        // Nobody has verified it.
        assert_eq!(access.check(sent(None, true), false), Err(Denial::Token));
        assert!(!format!("{access:?}").contains("0123"));
    }

    fn sent(authorization: Option<&str>, is_certified: bool) -> Caller<'_> {
        Caller {
            host: Some("node1:9090"),
            authorization,
            is_certified,
        }
    }

    #[test]
    fn a_certificate_is_enough_and_the_token_does_as_well() {
        let token = || Token::parse("0123456789abcdef").expect("a token");
        let right = Some("Bearer 0123456789abcdef");
        for (access, denial) in [
            (Access::Certificate(None), Denial::Certificate),
            (Access::Certificate(Some(token())), Denial::Neither),
        ] {
            assert_eq!(access.check(sent(None, true), false), Ok(()));
            for wrong in [None, Some("Bearer 0123456789abcdee"), Some("Bearer ")] {
                let denied = Err(denial.clone());
                assert_eq!(access.check(sent(wrong, false), false), denied);
            }
            assert_eq!(access.check(sent(None, false), true), Ok(()));
        }
        let both = Access::Certificate(Some(token()));
        assert_eq!(both.check(sent(right, false), false), Ok(()));
        let alone = Access::Certificate(None);
        let denied = alone.check(sent(right, false), false);
        assert_eq!(denied, Err(Denial::Certificate));
    }

    #[test]
    fn what_is_no_secret_is_no_token() {
        for text in [
            "",
            "short",
            "0123456789abcde",
            "two words of a token",
            "0123456789abcdeä",
        ] {
            assert!(Token::parse(text).is_err(), "{text}");
        }
        let long = "x".repeat(LONGEST + 1);
        assert!(Token::parse(&long).is_err_and(|e| e.contains("513 octets")));
    }
}
