//! Expressions and filters by chance, of the right types, always the same for a seed.

/// Numbers by chance.
pub(crate) struct Chance(u64);

/// Types of generated expressions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Bool,
    Int,
    Ip,
    Prefix,
    Pair,
    Large,
    Extended,
    Text,
    Path,
    Communities,
    LargeCommunities,
    ExtCommunities,
}

pub(crate) const KINDS: [Kind; 12] = [
    Kind::Bool,
    Kind::Int,
    Kind::Ip,
    Kind::Prefix,
    Kind::Pair,
    Kind::Large,
    Kind::Extended,
    Kind::Text,
    Kind::Path,
    Kind::Communities,
    Kind::LargeCommunities,
    Kind::ExtCommunities,
];

impl Kind {
    /// Its word in declarations.
    const fn word(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Ip => "ip",
            Self::Prefix => "prefix",
            Self::Pair => "pair",
            Self::Large => "lc",
            Self::Extended => "ec",
            Self::Text => "string",
            Self::Path => "bgppath",
            Self::Communities => "clist",
            Self::LargeCommunities => "lclist",
            Self::ExtCommunities => "eclist",
        }
    }
}

/// What an expression may name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// There is a route.
    pub(crate) route: bool,
    pub(crate) variables: Vec<(String, Kind)>,
    pub(crate) functions: Vec<(String, Vec<Kind>, Kind)>,
}

impl Chance {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let mixed = (self.0 ^ (self.0 >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 33) % end
    }

    pub(crate) fn one<T: Copy>(&mut self, all: &[T]) -> T {
        let at = self.below(all.len() as u64);
        all[usize::try_from(at).unwrap()]
    }

    fn number(&mut self) -> u64 {
        match self.below(5) {
            0 => self.one(&[0, 1, 65535, 65536, 4_294_967_295]),
            1 => 64_500 + self.below(20),
            _ => self.below(12),
        }
    }

    fn small(&mut self) -> u64 {
        self.one(&[1, 2, 3, 5, 100, 65000])
    }

    fn address(&mut self) -> String {
        match self.below(4) {
            0 => format!("2001:db8::{:x}", self.below(4)),
            _ => format!("10.{}.0.{}", self.below(3), self.below(4)),
        }
    }

    fn prefix(&mut self) -> String {
        self.one(&[
            "10.0.0.0/8",
            "10.1.0.0/16",
            "10.1.0.0/24",
            "10.2.0.0/24",
            "0.0.0.0/0",
            "10.2.3.4/32",
            "192.168.0.0/17",
        ])
        .to_owned()
    }

    fn pattern(&mut self) -> String {
        let prefix = self.prefix();
        match self.below(5) {
            0 => prefix,
            1 => format!("{prefix}+"),
            2 => format!("{prefix}-"),
            _ => {
                let low = self.below(33);
                format!("{prefix}{{{low},{}}}", low + self.below(33 - low))
            }
        }
    }

    fn list(&mut self, mut one: impl FnMut(&mut Self) -> String) -> String {
        let count = 1 + self.below(4);
        let items: Vec<String> = (0..count).map(|_| one(self)).collect();
        format!("[{}]", items.join(", "))
    }

    /// Elements from one list each, so that no two overlap: BIRD 2.0.12 searches a tree of
    /// intervals that knows nothing of those that do.
    fn apart(&mut self, parts: &[&[&str]]) -> String {
        let mut items: Vec<&str> = Vec::new();
        for part in parts {
            if self.below(2) == 0 {
                items.push(self.one(part));
            }
        }
        if items.is_empty() {
            items.push(self.one(parts[0]));
        }
        format!("[{}]", items.join(", "))
    }

    /// A set that may hold values of the kind.
    fn set(&mut self, kind: Kind) -> String {
        match kind {
            Kind::Int | Kind::Path => self.apart(&[
                &["0", "0..2", "(0 + 1)", "1..1"],
                &["3", "3..5", "(2 + 1)"],
                &["6..100", "100", "7..11"],
                &["64500..65000", "65000", "64500"],
                &["65535", "65535..65536", "(65535 + 1)"],
                &["4294967295", "70000..4294967295"],
            ]),
            Kind::Pair | Kind::Communities => match self.below(40) {
                // 65,536 intervals each: a few are enough.
                0 => self.one(&["[(*, 2)]", "[(*, 1..3)]"]).to_owned(),
                1..=5 => self.one(&["[(*, *)]", "[(1..3, 2..5)]"]).to_owned(),
                _ => self.apart(&[
                    &["(1, *)", "(1, 2..100)", "(0..1, *)", "(1, 1)"],
                    &["(2, 3)", "(2, 2..5)", "(2..3, *)"],
                    &["(5, 5)", "(5..100, *)", "(5, *)"],
                    &["(65000, 100)", "(65000, 1..3)", "(64512..65535, *)"],
                ]),
            },
            Kind::Large | Kind::LargeCommunities => self.apart(&[
                &["(1, *, *)", "(1, 2, 3)", "(1, 2, 2..500)", "(1, 2, *)"],
                &["(2, 3, 5)", "(2, 3..5, *)"],
                &["(3..5, *, *)", "(5, 5, 5)", "(3, 1, 1..100)"],
                &["(100, 100, 100)", "(100, *, *)"],
            ]),
            Kind::Extended | Kind::ExtCommunities => self.apart(&[
                &["(rt, 1, 2)", "(rt, 1, *)", "(rt, 1, 2..500)"],
                &["(rt, 100, *)", "(rt, 100, 100)", "(rt, 2..100, *)"],
                &["(ro, 1, 2)", "(ro, 1, 5..65000)"],
                &["(ro, 65000, 5)", "(ro, 65000, *)"],
            ]),
            Kind::Ip => self.apart(&[
                &["10.0.0.1", "10.0.0.0..10.0.0.2"],
                &["10.1.0.2", "10.0.0.3..10.1.0.200"],
                &["10.2.0.0", "10.2.0.0..10.255.0.0"],
            ]),
            _ => self.list(Self::pattern),
        }
    }

    fn mask(&mut self) -> String {
        let count = self.below(5);
        let parts: Vec<String> = (0..count)
            .map(|_| match self.below(8) {
                0 | 1 => "*".to_owned(),
                2 => "?".to_owned(),
                3 => "1..3".to_owned(),
                4 => "[2, 65000..65535]".to_owned(),
                5 => format!("{} +", self.small()),
                _ => self.small().to_string(),
            })
            .collect();
        format!("[= {} =]", parts.join(" "))
    }

    /// An expression of the kind; `depth`: how many may stand inside each other.
    pub(crate) fn expression(&mut self, kind: Kind, depth: u64, known: &Known) -> String {
        let fitting: Vec<&(String, Kind)> = known
            .variables
            .iter()
            .filter(|(_, own)| *own == kind)
            .collect();
        if !fitting.is_empty() && self.below(4) == 0 {
            return self.one(&fitting).0.clone();
        }
        let functions: Vec<&(String, Vec<Kind>, Kind)> = known
            .functions
            .iter()
            .filter(|(_, _, own)| *own == kind)
            .collect();
        if !functions.is_empty() && depth > 0 && self.below(5) == 0 {
            let (name, parameters, _) = self.one(&functions);
            let arguments: Vec<String> = parameters
                .iter()
                .map(|kind| self.expression(*kind, depth - 1, known))
                .collect();
            return format!("{name}({})", arguments.join(", "));
        }
        if depth == 0 || self.below(4) == 0 {
            return self.leaf(kind, known);
        }
        self.inner(kind, depth - 1, known)
    }

    fn leaf(&mut self, kind: Kind, known: &Known) -> String {
        if known.route && self.below(2) == 0 {
            match kind {
                Kind::Int => {
                    return self
                        .one(&[
                            "bgp_med",
                            "bgp_local_pref",
                            "bgp_path.len",
                            "bgp_cluster_list.len",
                            "preference",
                            "net.len",
                            "bgp_path.last",
                        ])
                        .to_owned();
                }
                Kind::Prefix => return "net".to_owned(),
                Kind::Path => return "bgp_path".to_owned(),
                Kind::Communities => {
                    let lists = ["bgp_community", "bgp_community", "bgp_cluster_list"];
                    return self.one(&lists).to_owned();
                }
                Kind::Ip => return self.one(&["from", "gw"]).to_owned(),
                Kind::Text => return "proto".to_owned(),
                Kind::LargeCommunities => return "bgp_large_community".to_owned(),
                Kind::ExtCommunities => return "bgp_ext_community".to_owned(),
                Kind::Bool => {
                    let name = self.one(&[
                        "bgp_med",
                        "bgp_local_pref",
                        "from",
                        "igp_metric",
                        "bgp_atomic_aggr",
                        "bgp_cluster_list",
                    ]);
                    return format!("defined({name})");
                }
                _ => {}
            }
        }
        match kind {
            Kind::Bool => self.one(&["true", "false"]).to_owned(),
            Kind::Int => self.number().to_string(),
            Kind::Ip => self.address(),
            Kind::Prefix => self.prefix(),
            Kind::Pair => format!("({}, {})", self.small(), self.small()),
            Kind::Large => format!("({}, {}, {})", self.small(), self.small(), self.small()),
            Kind::Extended => {
                let word = self.one(&["rt", "ro"]);
                format!("({word}, {}, {})", self.small(), self.small())
            }
            Kind::Text => self
                .one(&["\"\"", "\"a\"", "\"abc\"", "\"abd\"", "\"a*\""])
                .to_owned(),
            Kind::Path => "+empty+".to_owned(),
            Kind::Communities => "-empty-".to_owned(),
            Kind::LargeCommunities => "---empty---".to_owned(),
            Kind::ExtCommunities => "--empty--".to_owned(),
        }
    }

    fn inner(&mut self, kind: Kind, depth: u64, known: &Known) -> String {
        let element = match kind {
            Kind::Bool => return self.truth(depth, known),
            Kind::Int => return self.arithmetic(depth, known),
            Kind::Ip => {
                let inner = self.expression(Kind::Ip, 0, known);
                return format!("({inner}).mask({})", self.below(33));
            }
            Kind::Pair if self.below(2) == 0 => {
                let list = self.expression(Kind::Communities, depth, known);
                return format!("add({list}, (1, 2)).{}", self.one(&["min", "max"]));
            }
            Kind::Pair => {
                let number = self.expression(Kind::Int, 0, known);
                return format!("(({number}) / 70000, {})", self.small());
            }
            Kind::Path => {
                let path = self.expression(Kind::Path, depth, known);
                return match self.below(4) {
                    0 => format!("delete({path}, {})", self.small()),
                    1 => format!("filter({path}, {})", self.set(Kind::Path)),
                    _ => format!("prepend({path}, {})", self.small()),
                };
            }
            Kind::Communities => Kind::Pair,
            Kind::LargeCommunities => Kind::Large,
            Kind::ExtCommunities => Kind::Extended,
            other => return self.leaf(other, known),
        };
        let list = self.expression(kind, depth, known);
        match self.below(6) {
            0 => format!("delete({list}, {})", self.set(kind)),
            1 => format!("filter({list}, {})", self.set(kind)),
            2 => format!("add({list}, {})", self.expression(kind, depth, known)),
            _ => format!("add({list}, {})", self.leaf(element, &Known::default())),
        }
    }

    fn arithmetic(&mut self, depth: u64, known: &Known) -> String {
        match self.below(6) {
            0 => {
                let kind = self.one(&[
                    Kind::Communities,
                    Kind::LargeCommunities,
                    Kind::ExtCommunities,
                ]);
                let list = self.expression(kind, depth, known);
                format!("({list}).len")
            }
            1 => {
                let path = self.expression(Kind::Path, depth, known);
                let what = self.one(&["len", "first", "last", "last_nonaggregated"]);
                format!("({path}).{what}")
            }
            2 => {
                let pair = self.leaf(Kind::Pair, known);
                format!("{pair}.{}", self.one(&["asn", "data"]))
            }
            _ => {
                let left = self.expression(Kind::Int, depth, known);
                let operator = self.one(&["+", "-", "*", "/", "+", "-"]);
                let right = self.expression(Kind::Int, depth, known);
                match self.below(3) {
                    0 => format!("({left}) {operator} ({right})"),
                    1 => format!("{left} {operator} ({right})"),
                    _ => format!("({left} {operator} {right})"),
                }
            }
        }
    }

    fn truth(&mut self, depth: u64, known: &Known) -> String {
        match self.below(9) {
            0 | 1 => {
                let left = self.expression(Kind::Bool, depth, known);
                let operator = self.one(&["&&", "||"]);
                let right = self.expression(Kind::Bool, depth, known);
                match self.below(2) {
                    0 => format!("({left} {operator} {right})"),
                    _ => format!("({left}) {operator} ({right}) || false && true"),
                }
            }
            2 => format!("!({})", self.expression(Kind::Bool, depth, known)),
            3 | 4 => {
                let kind = self.one(&[
                    Kind::Int,
                    Kind::Ip,
                    Kind::Prefix,
                    Kind::Pair,
                    Kind::Large,
                    Kind::Extended,
                    Kind::Text,
                ]);
                let left = self.expression(kind, depth, known);
                // BIRD's order of strings is that of strcmp's number, which is no order.
                let operators: &[&str] = match kind {
                    Kind::Text => &["=", "!="],
                    _ => &["=", "!=", "<", "<=", ">", ">="],
                };
                let operator = self.one(operators);
                let right = self.expression(kind, depth, known);
                format!("({left}) {operator} ({right})")
            }
            5 => {
                let kind = self.one(&[Kind::Path, Kind::Communities]);
                let left = self.expression(kind, depth, known);
                format!("({left}) = ({})", self.expression(kind, depth, known))
            }
            _ => {
                let operator = self.one(&["~", "!~"]);
                let (left, right) = self.matching(depth, known);
                format!("({left} {operator} {right})")
            }
        }
    }

    fn matching(&mut self, depth: u64, known: &Known) -> (String, String) {
        match self.below(8) {
            0 => (self.expression(Kind::Path, depth, known), self.mask()),
            1 => {
                let number = self.small().to_string();
                (number, self.expression(Kind::Path, depth, known))
            }
            2 => {
                let address = self.expression(Kind::Ip, 0, known);
                (address, self.prefix())
            }
            3 => {
                let prefix = self.expression(Kind::Prefix, 0, known);
                (prefix, self.prefix())
            }
            4 => {
                let (list, element) = self.one(&[
                    (Kind::Communities, Kind::Pair),
                    (Kind::LargeCommunities, Kind::Large),
                    (Kind::ExtCommunities, Kind::Extended),
                ]);
                let element = self.leaf(element, known);
                (
                    element,
                    format!("({})", self.expression(list, depth, known)),
                )
            }
            5 => {
                let text = self.leaf(Kind::Text, known);
                (
                    text,
                    self.one(&["\"a*\"", "\"?b?\"", "\"*c\"", "\"a?\"", "\"*\""])
                        .to_owned(),
                )
            }
            _ => {
                let kind = self.one(&[
                    Kind::Int,
                    Kind::Pair,
                    Kind::Large,
                    Kind::Extended,
                    Kind::Ip,
                    Kind::Prefix,
                    Kind::Prefix,
                    Kind::Path,
                    Kind::Communities,
                    Kind::LargeCommunities,
                    Kind::ExtCommunities,
                ]);
                let left = self.expression(kind, depth, known);
                (format!("({left})"), self.set(kind))
            }
        }
    }

    /// Steps of a block on one line.
    pub(crate) fn steps(&mut self, depth: u64, known: &mut Known) -> String {
        let variables = known.variables.len();
        let count = 1 + self.below(3);
        let mut text = String::new();
        // BIRD 2.0.12 fails at run time where declarations stand behind other steps, and crashes in
        // blocks inside others.
        let declared = if known.variables.is_empty() {
            self.below(3)
        } else {
            0
        };
        for _ in 0..declared {
            let kind = self.one(&KINDS);
            let name = format!("v{}", known.variables.len());
            let value = self.expression(kind, 1, known);
            text += &format!("{} {name} = {value}; ", kind.word());
            known.variables.push((name, kind));
        }
        for _ in 0..count {
            text += &self.step(depth, known);
            text.push(' ');
        }
        known.variables.truncate(variables);
        text
    }

    fn step(&mut self, depth: u64, known: &mut Known) -> String {
        if depth > 0 {
            match self.below(5) {
                0 | 1 => {
                    let condition = self.expression(Kind::Bool, 2, known);
                    let yes = self.steps(depth - 1, known);
                    let no = match self.below(2) {
                        0 => format!(" else {{ {}}}", self.steps(depth - 1, known)),
                        _ => String::new(),
                    };
                    return format!("if {condition} then {{ {yes}}}{no}");
                }
                2 => {
                    let subject = self.expression(Kind::Int, 1, known);
                    let first = self.steps(depth - 1, known);
                    let other = self.steps(depth - 1, known);
                    return format!(
                        "case {subject} {{ 0, 2..4: {first} 5: {other} else: bgp_med = 77; }}"
                    );
                }
                _ => {}
            }
        }
        match self.below(10) {
            0 => format!("bgp_med = {};", self.expression(Kind::Int, 2, known)),
            1 => format!("bgp_local_pref = {};", self.expression(Kind::Int, 2, known)),
            2 => format!(
                "bgp_path.prepend({});",
                self.expression(Kind::Int, 0, known)
            ),
            3 => format!("bgp_path.delete({});", self.set(Kind::Path)),
            4 => format!(
                "bgp_community.add({});",
                self.expression(Kind::Pair, 1, known)
            ),
            5 => format!(
                "bgp_community.{}({});",
                self.one(&["delete", "filter"]),
                self.set(Kind::Pair)
            ),
            6 => format!(
                "bgp_large_community.add({});",
                self.leaf(Kind::Large, known)
            ),
            7 => format!(
                "bgp_ext_community.add({});",
                self.leaf(Kind::Extended, known)
            ),
            8 => format!(
                "bgp_large_community = {};",
                self.expression(Kind::LargeCommunities, 2, known)
            ),
            _ => self
                .one(&["accept;", "reject;", "unset(bgp_med);"])
                .to_owned(),
        }
    }

    /// A function and its place among those that are known.
    pub(crate) fn function(&mut self, known: &mut Known) -> String {
        let kind = self.one(&KINDS);
        let name = format!("f{}", known.functions.len());
        let parameters: Vec<Kind> = (0..self.below(3)).map(|_| self.one(&KINDS)).collect();
        let mut inside = known.clone();
        for (index, kind) in parameters.iter().enumerate() {
            inside.variables.push((format!("a{index}"), *kind));
        }
        let declared: Vec<String> = parameters
            .iter()
            .enumerate()
            .map(|(index, kind)| format!("{} a{index}", kind.word()))
            .collect();
        let condition = self.expression(Kind::Bool, 2, &inside);
        let early = self.expression(kind, 1, &inside);
        let late = self.expression(kind, 2, &inside);
        let step = self.step(0, &mut inside);
        known.functions.push((name.clone(), parameters, kind));
        format!(
            "function {name}({}) {{ if {condition} then {{ {step} return {early}; }} return {late}; }}",
            declared.join("; ")
        )
    }
}
