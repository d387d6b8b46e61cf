//! The sources as syntax trees: modules as the compiler finds them, what each names, how long each
//! function is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree};

use super::{PRODUCT, root};

/// A path of a program, one entry for each segment: `["crate", "rib", "Rib"]`.
pub(crate) type Segments = Vec<String>;

/// One file that belongs to a crate.
pub(crate) struct Source {
    /// From the root of the repository.
    pub(crate) name: String,
    /// Path of its module; empty for the root of the crate.
    pub(crate) module: Segments,
    /// Compiled for tests only.
    pub(crate) is_test: bool,
    /// It is there only with a feature of the crate.
    pub(crate) behind_feature: bool,
    pub(crate) text: String,
    /// Paths used outside of its tests, with aliases of `use` resolved; `crate`, `self` and `super`
    /// made absolute.
    pub(crate) named: BTreeSet<Segments>,
    /// Names that it re-exports or imports, with the path that they stand for.
    pub(crate) aliases: BTreeMap<String, Segments>,
    /// Names that it offers others by `pub use` and `pub mod`.
    pub(crate) offered: Vec<Offer>,
    /// Functions outside of tests, with their length in lines.
    pub(crate) functions: Vec<(String, usize)>,
    /// Public methods outside of tests: type and name.
    pub(crate) methods: Vec<(String, String)>,
}

/// Visibility of an item by its own declaration.
pub(crate) enum Offer {
    Module(String),
    Name(String),
    Everything,
}

/// The crates of the product.
pub(crate) fn product() -> impl Iterator<Item = (&'static str, &'static [Source])> {
    crates().filter(|(folder, _)| PRODUCT.contains(folder))
}

/// The product's crates, and what the scenarios share. Each is parsed once, whichever rules ask for
/// it, and crates side by side.
pub(crate) fn crates() -> impl Iterator<Item = (&'static str, &'static [Source])> {
    static PARSED: LazyLock<Vec<(&str, Vec<Source>)>> = LazyLock::new(|| {
        let root = root();
        std::thread::scope(|scope| {
            let parse = |folder| {
                (
                    folder,
                    scope.spawn({
                        let root = &root;
                        move || load(root, folder)
                    }),
                )
            };
            let folders = PRODUCT.into_iter().chain(["tests"]);
            let running: Vec<_> = folders.map(parse).collect();
            let parsed = running.into_iter();
            parsed
                .map(|(folder, task)| (folder, task.join().expect("parsed")))
                .collect()
        })
    });
    PARSED
        .iter()
        .map(|(folder, sources)| (*folder, sources.as_slice()))
}

/// All files of the crate in `folder`, as its module declarations find them.
fn load(root: &Path, folder: &str) -> Vec<Source> {
    let src = root.join(folder).join("src");
    let start = ["lib.rs", "main.rs"].map(|f| src.join(f));
    let start = start.iter().find(|p| p.is_file());
    let start = start.unwrap_or_else(|| panic!("{folder}: neither lib.rs nor main.rs"));
    let mut sources = Vec::new();
    let place = Place {
        module: Vec::new(),
        is_test: false,
        behind_feature: false,
    };
    read(root, start, &src, place, &mut sources);
    sources
}

#[derive(Clone)]
struct Place {
    module: Segments,
    is_test: bool,
    behind_feature: bool,
}

fn read(root: &Path, file: &Path, children: &Path, place: Place, into: &mut Vec<Source>) {
    let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let syntax = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let mut reader = Reader::new(place.module.clone());
    reader.aliases_of(&syntax.items);
    reader.visit_file(&syntax);
    let name = file.strip_prefix(root).expect("inside the repository");
    let mut deeper = Vec::new();
    for item in &syntax.items {
        let Item::Mod(module) = item else { continue };
        if module.content.is_some() {
            continue;
        }
        let mut next = place.clone();
        let name = module.ident.to_string();
        next.module.push(name.clone());
        next.is_test |= is_for_tests(&module.attrs);
        next.behind_feature |= has_cfg(&module.attrs, "feature");
        let path = path_attribute(&module.attrs).map(|p| file.with_file_name(p));
        let nested = children.join(&name);
        let found = path
            .or_else(|| Some(children.join(format!("{name}.rs"))))
            .filter(|p| p.is_file())
            .unwrap_or_else(|| nested.join("mod.rs"));
        deeper.push((found, nested, next));
    }
    into.push(Source {
        name: name.display().to_string(),
        module: place.module,
        is_test: place.is_test,
        behind_feature: place.behind_feature,
        text,
        named: reader.named,
        aliases: reader.aliases,
        offered: offers(&syntax.items),
        functions: reader.functions,
        methods: reader.methods,
    });
    for (file, children, place) in deeper {
        read(root, &file, &children, place, into);
    }
}

fn has_cfg(attributes: &[Attribute], word: &str) -> bool {
    let is_cfg = |a: &&Attribute| a.path().is_ident("cfg");
    let mut words = attributes
        .iter()
        .filter(is_cfg)
        .filter_map(|a| a.meta.require_list().ok())
        .map(|list| list.tokens.to_string());
    words.any(|tokens| {
        let mut words = tokens.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.any(|w| w == word)
    })
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    has_cfg(attributes, "test") || attributes.iter().any(|a| a.path().is_ident("test"))
}

fn path_attribute(attributes: &[Attribute]) -> Option<PathBuf> {
    let attribute = attributes.iter().find(|a| a.path().is_ident("path"))?;
    let value = &attribute.meta.require_name_value().ok()?.value;
    match value {
        syn::Expr::Lit(syn::ExprLit {
            lit: syn::Lit::Str(text),
            ..
        }) => Some(text.value().into()),
        _ => None,
    }
}

fn offers(items: &[Item]) -> Vec<Offer> {
    let mut offers = Vec::new();
    for item in items {
        match item {
            Item::Mod(module) if matches!(module.vis, syn::Visibility::Public(_)) => {
                offers.push(Offer::Module(module.ident.to_string()));
            }
            Item::Use(import) if matches!(import.vis, syn::Visibility::Public(_)) => {
                leaves(&import.tree, &mut Vec::new(), &mut |_, name| {
                    offers.push(match name {
                        Some(name) => Offer::Name(name),
                        None => Offer::Everything,
                    });
                });
            }
            _ => {}
        }
    }
    offers
}

/// Each leaf of a `use`: its path, and the name that it gets here (`None`: everything).
fn leaves(tree: &UseTree, before: &mut Segments, each: &mut impl FnMut(Segments, Option<String>)) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            leaves(&path.tree, before, each);
            before.pop();
        }
        UseTree::Group(group) => {
            for tree in &group.items {
                leaves(tree, before, each);
            }
        }
        UseTree::Glob(_) => each(before.clone(), None),
        UseTree::Name(name) if name.ident == "self" => each(before.clone(), before.last().cloned()),
        UseTree::Name(name) => {
            let mut path = before.clone();
            path.push(name.ident.to_string());
            each(path, Some(name.ident.to_string()));
        }
        UseTree::Rename(rename) => {
            let mut path = before.clone();
            if rename.ident != "self" {
                path.push(rename.ident.to_string());
            }
            each(path, Some(rename.rename.to_string()));
        }
    }
}

struct Reader {
    module: Segments,
    aliases: BTreeMap<String, Segments>,
    named: BTreeSet<Segments>,
    functions: Vec<(String, usize)>,
    methods: Vec<(String, String)>,
    /// The type whose methods are read.
    within: String,
}

impl Reader {
    fn new(module: Segments) -> Self {
        Self {
            module,
            aliases: BTreeMap::new(),
            named: BTreeSet::new(),
            functions: Vec::new(),
            methods: Vec::new(),
            within: String::new(),
        }
    }

    fn aliases_of(&mut self, items: &[Item]) {
        for item in items {
            match item {
                Item::Use(import) if !is_for_tests(&import.attrs) => self.import(&import.tree),
                Item::Mod(module) if !is_for_tests(&module.attrs) => {
                    let name = module.ident.to_string();
                    let mut path = vec!["crate".to_owned()];
                    path.extend(self.module.iter().cloned());
                    path.push(name.clone());
                    self.aliases.insert(name, path);
                }
                _ => {}
            }
        }
    }

    fn import(&mut self, tree: &UseTree) {
        let mut found = Vec::new();
        leaves(tree, &mut Vec::new(), &mut |path, name| {
            found.push((path, name));
        });
        for (path, name) in found {
            let path = self.absolute(path);
            self.named.insert(path.clone());
            if let Some(name) = name.filter(|n| n != "_") {
                self.aliases.insert(name, path);
            }
        }
    }

    /// `self` and `super` as a path from the crate.
    fn absolute(&self, path: Segments) -> Segments {
        let mut base = self.module.clone();
        let mut rest = path.as_slice();
        match rest.first().map(String::as_str) {
            Some("self") => rest = &rest[1..],
            Some("super") => {
                while rest.first().is_some_and(|s| s == "super") {
                    base.pop();
                    rest = &rest[1..];
                }
            }
            _ => return path,
        }
        let mut whole = vec!["crate".to_owned()];
        whole.extend(base);
        whole.extend(rest.iter().cloned());
        whole
    }

    fn name(&mut self, path: Segments) {
        let path = match path.first().and_then(|first| self.aliases.get(first)) {
            Some(alias) => {
                let mut whole = alias.clone();
                whole.extend(path.into_iter().skip(1));
                whole
            }
            None => self.absolute(path),
        };
        if path.len() > 1 {
            self.named.insert(path);
        }
    }

    /// Paths in the arguments of a macro, which is no syntax tree: words joined by `::`.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Segments = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(word) => {
                    if colons != 2 {
                        self.name(std::mem::take(&mut path));
                    }
                    path.push(word.to_string());
                    colons = 0;
                }
                TokenTree::Punct(p) if p.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.name(std::mem::take(&mut path));
                    colons = 0;
                    self.tokens(group.stream());
                }
                _ => {
                    self.name(std::mem::take(&mut path));
                    colons = 0;
                }
            }
        }
        self.name(path);
    }

    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let lines = block.span().end().line - signature.span().start().line + 1;
        let name = if self.within.is_empty() {
            signature.ident.to_string()
        } else {
            format!("{}::{}", self.within, signature.ident)
        };
        self.functions.push((name, lines));
    }
}

impl<'a> Visit<'a> for Reader {
    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        if !is_for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_use(&mut self, import: &'a syn::ItemUse) {
        if !is_for_tests(&import.attrs) {
            self.import(&import.tree);
        }
    }

    fn visit_item_fn(&mut self, function: &'a syn::ItemFn) {
        if !is_for_tests(&function.attrs) {
            self.function(&function.sig, &function.block);
            visit::visit_item_fn(self, function);
        }
    }

    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        if !is_for_tests(&item.attrs) {
            let name = match &*item.self_ty {
                syn::Type::Path(path) => path.path.segments.last().map(|s| s.ident.to_string()),
                _ => None,
            };
            let outside = std::mem::replace(&mut self.within, name.unwrap_or_default());
            visit::visit_item_impl(self, item);
            self.within = outside;
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'a syn::ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            self.function(&function.sig, &function.block);
            if matches!(function.vis, syn::Visibility::Public(_)) {
                let name = function.sig.ident.to_string();
                self.methods.push((self.within.clone(), name));
            }
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        self.name(path.segments.iter().map(|s| s.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        self.visit_path(&call.path);
        self.tokens(call.tokens.clone());
    }
}
