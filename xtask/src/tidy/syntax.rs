//! Rules that need the syntax of the core's files: what a floor gives another one without a path.

use super::Report;
use super::source::Source;
use std::collections::BTreeMap;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// Calls whose literal bool says enough: atomics, cells, and what wraps a value.
const BOOL_TAKERS: [&str; 11] = [
    "Err",
    "Ok",
    "Some",
    "compare_exchange",
    "map_or",
    "new",
    "replace",
    "set",
    "store",
    "swap",
    "unwrap_or",
];

/// Checks the core. `hooks` are the fields and statics, by file and name, that may hold a function or an untyped
/// pointer: those of ARCHITECTURE.md.
pub(super) fn check(core: &[Source], hooks: &[&str], report: &mut Report) {
    let parsed: Vec<_> =
        core.iter().filter_map(|source| Some((source, parse(source, report)?))).collect();
    let mut homes: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (source, file) in &parsed {
        for name in file.items.iter().filter_map(type_name) {
            homes.entry(name).or_default().push(source.floor());
        }
    }
    let is_alias =
        |item: &&syn::Item| matches!(item, syn::Item::Type(alias) if Hidden::is_in(&alias.ty, &[]));
    let items = parsed.iter().flat_map(|(_, file)| &file.items);
    let aliases: Vec<_> = items.filter(is_alias).filter_map(alias_name).collect();
    let mut unseen = hooks.to_vec();
    for (source, file) in &parsed {
        let mut seen =
            Seen { source, homes: &homes, aliases: &aliases, hooks, report, met: Vec::new() };
        seen.visit_file(file);
        let met = seen.met;
        unseen.retain(|hook| !met.contains(hook));
    }
    for hook in unseen {
        report.fail("ARCHITECTURE.md", 1, "hooks", format!("there is no {hook}"));
    }
}

fn parse(source: &Source, report: &mut Report) -> Option<syn::File> {
    let parsed = syn::parse_file(&source.text);
    parsed
        .inspect_err(|error| report.fail(&source.path, error.span().start().line, "syntax", error))
        .ok()
}

/// The name of a type that an item defines.
fn type_name(item: &syn::Item) -> Option<String> {
    match item {
        syn::Item::Struct(item) => Some(item.ident.to_string()),
        syn::Item::Enum(item) => Some(item.ident.to_string()),
        syn::Item::Union(item) => Some(item.ident.to_string()),
        _ => None,
    }
}

fn alias_name(item: &syn::Item) -> Option<String> {
    match item {
        syn::Item::Type(alias) => Some(alias.ident.to_string()),
        _ => None,
    }
}

/// What the walk over one file knows.
struct Seen<'a> {
    source: &'a Source,
    homes: &'a BTreeMap<String, Vec<&'a str>>,
    /// Names of types that are functions.
    aliases: &'a [String],
    hooks: &'a [&'a str],
    report: &'a mut Report,
    met: Vec<&'a str>,
}

impl<'a> Seen<'a> {
    fn fail(&mut self, at: proc_macro2::Span, rule: &str, reason: String) {
        self.report.fail(&self.source.path, at.start().line, rule, reason);
    }

    /// A field or static that outlives a call may hold functions and untyped pointers if it is a hook.
    fn stored(&mut self, name: &syn::Ident, ty: &'a syn::Type) {
        if !Hidden::is_in(ty, self.aliases) {
            return;
        }
        let modules = self.source.modules().join("/");
        let key = format!("{modules}::{name}");
        match self.hooks.iter().find(|hook| **hook == key) {
            Some(hook) => self.met.push(hook),
            None => self.fail(name.span(), "hooks", format!("`{key}` hides whom it leads to")),
        }
    }

    fn arguments(
        &mut self,
        callee: &str,
        arguments: &syn::punctuated::Punctuated<syn::Expr, syn::Token![,]>,
    ) {
        for argument in arguments {
            let is_bool =
                matches!(argument, syn::Expr::Lit(lit) if matches!(lit.lit, syn::Lit::Bool(_)));
            if is_bool && !BOOL_TAKERS.contains(&callee) {
                self.fail(
                    argument.span(),
                    "bools",
                    format!("`{callee}` gets a literal bool: what is true?"),
                );
            }
        }
    }
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && matches!(&attribute.meta, syn::Meta::List(list) if list.tokens.to_string() == "test")
    })
}

impl<'a> Visit<'a> for Seen<'a> {
    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        if !is_for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'a syn::ItemFn) {
        if !is_for_tests(&function.attrs) {
            visit::visit_item_fn(self, function);
        }
    }

    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        if item.trait_.is_none()
            && let syn::Type::Path(path) = &*item.self_ty
            && let Some(last) = path.path.segments.last()
            && let Some(homes) = self.homes.get(&last.ident.to_string())
            && !homes.contains(&self.source.floor())
        {
            let reason = format!("`{}` is a type of {}", last.ident, homes.join(", "));
            self.fail(item.self_ty.span(), "impls", reason);
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_field(&mut self, field: &'a syn::Field) {
        if let Some(name) = &field.ident {
            self.stored(name, &field.ty);
        }
        visit::visit_field(self, field);
    }

    fn visit_item_static(&mut self, item: &'a syn::ItemStatic) {
        self.stored(&item.ident, &item.ty);
        visit::visit_item_static(self, item);
    }

    fn visit_expr_call(&mut self, call: &'a syn::ExprCall) {
        if let syn::Expr::Path(path) = &*call.func
            && let Some(last) = path.path.segments.last()
        {
            self.arguments(&last.ident.to_string(), &call.args);
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        self.arguments(&call.method.to_string(), &call.args);
        visit::visit_expr_method_call(self, call);
    }
}

/// Whether a type has a function, or a pointer to nothing known, in it.
struct Hidden<'a> {
    aliases: &'a [String],
    found: bool,
}

impl<'a> Hidden<'a> {
    fn is_in(ty: &syn::Type, aliases: &'a [String]) -> bool {
        let mut hidden = Hidden { aliases, found: false };
        hidden.visit_type(ty);
        hidden.found
    }
}

impl<'t> Visit<'t> for Hidden<'_> {
    fn visit_type_bare_fn(&mut self, _: &'t syn::TypeBareFn) {
        self.found = true;
    }

    fn visit_type_ptr(&mut self, pointer: &'t syn::TypePtr) {
        self.found |= is_unit(&pointer.elem);
        visit::visit_type_ptr(self, pointer);
    }

    fn visit_path_segment(&mut self, segment: &'t syn::PathSegment) {
        self.found |= self.aliases.iter().any(|alias| segment.ident == alias);
        if segment.ident == "AtomicPtr"
            && let syn::PathArguments::AngleBracketed(arguments) = &segment.arguments
        {
            let unit = |argument: &syn::GenericArgument| matches!(argument, syn::GenericArgument::Type(ty) if is_unit(ty));
            self.found |= arguments.args.iter().any(unit);
        }
        visit::visit_path_segment(self, segment);
    }
}

fn is_unit(ty: &syn::Type) -> bool {
    matches!(ty, syn::Type::Tuple(tuple) if tuple.elems.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::source::tests::core as source_of;
    use super::*;

    fn failures(sources: &[(&str, &str)], hooks: &[&str]) -> usize {
        let core: Vec<_> = sources.iter().map(|(path, text)| source_of(path, text)).collect();
        let mut report = Report::default();
        check(&core, hooks, &mut report);
        report.failures
    }

    #[test]
    fn a_type_has_its_impls_on_its_floor() {
        let span = ("spans/span.rs", "pub struct Span; impl Span {}");
        assert_eq!(failures(&[span, ("spans/holes.rs", "impl Span {}")], &[]), 0);
        assert_eq!(failures(&[span, ("heap/a.rs", "impl Span {} impl Drop for Span {}")], &[]), 1);
        assert_eq!(failures(&[span, ("heap/a.rs", "impl<T> super::Span<T> {}")], &[]), 1);
    }

    #[test]
    fn what_hides_whom_it_leads_to_is_a_hook() {
        let text = "type Call = fn(); struct A { a: Option<Call>, b: *mut (), c: *mut u8 } static D: AtomicPtr<()> = x();";
        assert_eq!(failures(&[("os/a.rs", text)], &[]), 3);
        let hooks = ["os/a::a", "os/a::b", "os/a::D"];
        assert_eq!(failures(&[("os/a.rs", text)], &hooks), 0);
        assert_eq!(failures(&[("os/a.rs", "")], &hooks), 3);
        assert_eq!(
            failures(
                &[("os/a.rs", "fn f(of: fn()) {} #[cfg(test)] mod tests { static T: fn() = f; }")],
                &[]
            ),
            0
        );
    }

    #[test]
    fn literal_bools_are_no_arguments() {
        let of = |text: &str| failures(&[("os/a.rs", text)], &[]);
        assert_eq!(of("fn f() { g(1, true); h.i(false); }"), 2);
        assert_eq!(of("fn f() { A.store(true, Relaxed); Some(false); if g(x) == true {} }"), 0);
        assert_eq!(of("fn f() { assert!(g(true)); }"), 0);
    }
}
