//! `#[derive(KernelParam)]`, which `mscclpp-gpu` and `mscclpp` export beside the trait.

use proc_macro::{Delimiter, Group, TokenStream, TokenTree};

/// Implements the trait `KernelParam`, which must be in scope under this name, for a struct without type parameters.
/// The trait's requirements are checked when the struct is compiled: that it is `#[repr(C)]` or
/// `#[repr(transparent)]`, that each field is a `KernelParam`, and that there are no bytes between the fields or
/// after the last one. The trait's documentation has an example.
#[proc_macro_derive(KernelParam)]
pub fn kernel_param(input: TokenStream) -> TokenStream {
    implement(input).unwrap_or_else(|why| {
        let why = format!("#[derive(KernelParam)] is for {why}");
        parsed(&format!("::core::compile_error!({why:?});"))
    })
}

/// Returns the implementation, or a description of the structs that the macro is for.
fn implement(input: TokenStream) -> Result<TokenStream, &'static str> {
    const STRUCTS: &str = "structs without parameters, that have fields";
    let mut tokens = input.into_iter();
    let mut is_laid_out = false;
    let name = loop {
        match tokens.next() {
            // The group belongs to an attribute, or, with parentheses, to `pub(crate)`.
            Some(TokenTree::Group(group)) => is_laid_out |= is_layout(&group),
            Some(TokenTree::Ident(word)) if word.to_string() == "struct" => match tokens.next() {
                Some(TokenTree::Ident(name)) => break name,
                _ => return Err(STRUCTS),
            },
            Some(TokenTree::Ident(word)) if ["enum", "union"].contains(&&*word.to_string()) => {
                return Err(STRUCTS);
            }
            Some(_) => {}
            None => return Err(STRUCTS),
        }
    };
    let types = match tokens.next() {
        Some(TokenTree::Group(fields)) => types(&fields),
        _ => return Err(STRUCTS),
    };
    if types.is_empty() {
        return Err(STRUCTS);
    }
    if !is_laid_out {
        return Err("structs with #[repr(C)] or #[repr(transparent)], whose layout device code knows");
    }
    // The sum is inside an implementation, as `Self` may be in a field's type.
    let mut bytes = parsed("const BYTES: usize = 0");
    for field in types {
        // A field's tokens keep their places in the source, for the compiler's messages.
        bytes.extend(parsed("+ size_of_param::<"));
        bytes.extend(field);
        bytes.extend(parsed(">()"));
    }
    bytes.extend(parsed(";"));
    let mut check = parsed(&format!(
        "const fn size_of_param<T: KernelParam>() -> usize {{ ::core::mem::size_of::<T>() }} \
         trait Fields {{ const BYTES: usize; }} impl Fields for {name}"
    ));
    check.extend([braces(bytes)]);
    check.extend(parsed(&format!(
        "::core::assert!(::core::mem::size_of::<{name}>() == <{name} as Fields>::BYTES, \"{name} has bytes between its fields or behind \
         them; order the fields by size, or add fields for these bytes\");"
    )));
    let mut out = parsed("const _: () =");
    out.extend([braces(check)]);
    out.extend(parsed(&format!("; #[automatically_derived] unsafe impl KernelParam for {name} {{}}")));
    Ok(out)
}

fn braces(content: TokenStream) -> TokenTree {
    Group::new(Delimiter::Brace, content).into()
}

fn parsed(text: &str) -> TokenStream {
    text.parse().expect("a text of this file, with a name in it")
}

/// Whether an attribute's content is `repr` with a layout that device code uses, too.
fn is_layout(attribute: &Group) -> bool {
    let mut words = attribute.stream().into_iter();
    matches!(words.next(), Some(TokenTree::Ident(word)) if word.to_string() == "repr")
        && matches!(words.next(), Some(TokenTree::Group(of)) if of.stream().into_iter().any(|word| {
            ["C", "transparent"].contains(&&*word.to_string())
        }))
}

/// Returns the types of the fields between these braces or parentheses.
fn types(fields: &Group) -> Vec<TokenStream> {
    let mut types = Vec::new();
    let mut tokens = fields.stream().into_iter().peekable();
    while tokens.peek().is_some() {
        // Attributes, `pub` and a name with its colon come before the type.
        let mut is_named = fields.delimiter() == Delimiter::Brace;
        let mut angles = 0;
        let mut field: Vec<TokenTree> = Vec::new();
        for token in tokens.by_ref() {
            match &token {
                TokenTree::Punct(sign) => match sign.as_char() {
                    ',' if angles == 0 => break,
                    ':' if is_named => {
                        is_named = false;
                        field.clear();
                        continue;
                    }
                    '<' => angles += 1,
                    // The sign behind a minus is the head of an arrow, which closes no angle.
                    '>' if field.last().is_none_or(|last| last.to_string() != "-") => angles -= 1,
                    _ => {}
                },
                TokenTree::Group(group) if field.last().is_some_and(|last| is_prefix(last, group)) => {
                    field.pop();
                    continue;
                }
                _ => {}
            }
            if field.last().is_some_and(|last| last.to_string() == "pub") {
                field.pop();
            }
            field.push(token);
        }
        types.push(field.into_iter().collect());
    }
    types
}

/// Whether the token begins an attribute or `pub(crate)`, which ends with the group. `pub` may stand before an array, too.
fn is_prefix(token: &TokenTree, group: &Group) -> bool {
    let delimiter = match &*token.to_string() {
        "#" => Delimiter::Bracket,
        "pub" => Delimiter::Parenthesis,
        _ => return false,
    };
    group.delimiter() == delimiter
}
