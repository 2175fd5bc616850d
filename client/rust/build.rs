//! Writes the C headers' declarations in Rust, for ffi.rs. Finds libsortition_c: in the folder SORTITION_LIB_DIR,
//! otherwise where pkg-config says.
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    // An installed crate has the headers in it.
    let headers = if Path::new("include").exists() { "include/sortition" } else { "../c/include/sortition" };
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={}", headers);
    let read = |name| fs::read_to_string(Path::new(headers).join(name)).expect(name);
    let text = read("sortition_errors.h") + &read("sortition.h");
    let number = text.split("#define SORTITION_ABI_VERSION ").nth(1).and_then(|rest| rest.lines().next()).unwrap();
    let code = format!("pub const ABI_VERSION: u32 = {};\n", number) + &in_rust(&text);
    fs::write(PathBuf::from(env::var("OUT_DIR").unwrap()).join("declarations.rs"), code).unwrap();

    println!("cargo:rerun-if-env-changed=SORTITION_LIB_DIR");
    let folder = env::var("SORTITION_LIB_DIR").ok().or_else(folder_of_pkg_config);
    if let Some(folder) = folder {
        println!("cargo:rustc-link-search=native={}", folder);
    }
    println!("cargo:rustc-link-lib=dylib=sortition_c");
}

/// Translates the handles, the structs and the functions of a header.
fn in_rust(header: &str) -> String {
    let lines = header.lines().filter(|line| !line.starts_with('#'));
    let code: String = lines.map(|line| line.split("//").next().unwrap().to_string() + "\n").collect();
    let (mut structs, mut functions) = (String::new(), String::new());
    for part in code.split("typedef struct ").skip(1) {
        let end = part.find(|c| c == '{' || c == ';').unwrap();
        let name = type_in_rust(&part[..end]);
        if part[end..].starts_with(';') {
            structs += &format!("handle!({});\n", name.rsplit(' ').next().unwrap());
            continue;
        }
        let body = &part[end + 1..part.find('}').unwrap()];
        let fields = body.split(';').map(str::trim).filter(|field| !field.is_empty() && *field != "size_t struct_size");
        let fields: String = fields.map(split).map(|(name, kind)| format!("{}: {}, ", name, kind)).collect();
        structs += &format!("structure!({} {{ {} }});\n", name, fields);
    }
    for part in code.split("SORTITION_API ").skip(1) {
        let (head, parameters) = part[..part.find(");").unwrap()].split_once('(').unwrap();
        let (name, result) = split(head);
        let parameters = parameters.split(',').filter(|parameter| *parameter != "void").map(split);
        let parameters: String = parameters.map(|(_, kind)| format!("_: {}, ", kind)).collect();
        functions += &format!("    pub fn {}({}) -> {};\n", name, parameters, result.replace("c_void", "()"));
    }
    structs + "extern \"C\" {\n" + &functions + "}\n"
}

/// Splits "const char* name" into the name, and the type in Rust.
fn split(declaration: &str) -> (&str, String) {
    let at = declaration.trim_end().rfind(|c: char| c != '_' && !c.is_alphanumeric()).unwrap() + 1;
    (&declaration[at..], type_in_rust(&declaration[..at]))
}

/// Converts a type such as "const uint32_t*".
fn type_in_rust(c: &str) -> String {
    let (mut rust, mut constant) = (String::new(), false);
    for word in c.replace('*', " * ").split_whitespace() {
        rust = match word {
            "const" => rust,
            "*" => format!("*{} {}", if constant { "const" } else { "mut" }, rust),
            "size_t" => "usize".to_string(),
            "float" => "f32".to_string(),
            "double" => "f64".to_string(),
            "char" | "void" => format!("c_{}", word),
            "sortition_code" => "i32".to_string(),
            _ if word.ends_with("_t") => word[..word.len() - 2].replace("uint", "u").replace("int", "i"),
            _ => {
                word.split('_').skip(1).fold("C".to_string(), |all, part| all + &part[..1].to_uppercase() + &part[1..])
            }
        };
        constant = word == "const" || constant && word != "*";
    }
    rust
}

/// Returns nothing if the linker finds the library by itself, or if there is no pkg-config.
fn folder_of_pkg_config() -> Option<String> {
    let output = Command::new("pkg-config").args(["--variable=libdir", "sortition_c"]).output().ok()?;
    let folder = String::from_utf8(output.stdout).ok()?.trim().to_string();
    if output.status.success() && !folder.is_empty() {
        Some(folder)
    } else {
        None
    }
}
