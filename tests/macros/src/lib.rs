//! [`macro@real_only`]: marks an end-to-end test that needs real control planes.
//!
//! It appends `_on_real_control_planes` to the name. `make test` excludes and counts tests by this suffix,
//! because libtest filters only by name.

use proc_macro::{Ident, TokenStream, TokenTree};

/// Suffix of marked tests.
const SUFFIX: &str = "_on_real_control_planes";

/// Marks a test that needs a real control plane. A reason is required: `#[real_only("the fake API server
/// calls no webhooks")]`, above `#[tokio::test]`.
#[proc_macro_attribute]
pub fn real_only(why: TokenStream, test: TokenStream) -> TokenStream {
    let mut why = why.into_iter();
    let reason = match (why.next(), why.next()) {
        (Some(TokenTree::Literal(reason)), None) if reason.to_string().starts_with('"') => reason,
        _ => return error("say why in one text: #[real_only(\"it needs pods that run\")]"),
    };
    if reason.to_string().len() < 10 {
        return error("the reason is too short to be one");
    }
    let mut renamed = false;
    let mut after_fn = false;
    let tokens = test.into_iter().map(|token| match token {
        TokenTree::Ident(name) if after_fn && !renamed => {
            renamed = true;
            TokenTree::Ident(Ident::new(&format!("{name}{SUFFIX}"), name.span()))
        }
        token => {
            after_fn = matches!(&token, TokenTree::Ident(word) if word.to_string() == "fn");
            token
        }
    });
    let tokens: TokenStream = tokens.collect();
    if renamed { tokens } else { error("real_only marks a function") }
}

fn error(text: &str) -> TokenStream {
    format!("::core::compile_error!({text:?});").parse().unwrap_or_default()
}
