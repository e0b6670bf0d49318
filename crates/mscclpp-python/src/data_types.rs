//! The types of numbers: the one table from which the Python layer makes all others.

use mscclpp_collectives::DataType;
use pyo3::prelude::*;

use crate::error;

/// The types of numbers: the name in NumPy and PyTorch, another name in PyTorch, the type of the collectives, and the code of the
/// kind in DLPack.
const TYPES: [(&str, Option<&str>, DataType, u8); 14] = [
    ("float16", Some("half"), DataType::F16, FLOAT),
    ("bfloat16", None, DataType::Bf16, 4),
    ("float32", Some("float"), DataType::F32, FLOAT),
    ("float64", Some("double"), DataType::F64, FLOAT),
    ("float8_e4m3fn", None, DataType::F8E4m3, 10),
    ("float8_e5m2", None, DataType::F8E5m2, 12),
    ("int8", None, DataType::I8, INT),
    ("uint8", None, DataType::U8, UINT),
    ("int16", Some("short"), DataType::I16, INT),
    ("uint16", None, DataType::U16, UINT),
    ("int32", Some("int"), DataType::I32, INT),
    ("uint32", None, DataType::U32, UINT),
    ("int64", Some("long"), DataType::I64, INT),
    ("uint64", None, DataType::U64, UINT),
];
const INT: u8 = 0;
const UINT: u8 = 1;
const FLOAT: u8 = 2;

/// Name, bytes of a number, and code of the kind in DLPack, of each type that has collectives.
#[pyfunction(name = "_data_types")]
pub(crate) fn data_types() -> Vec<(&'static str, u64, u8)> {
    TYPES.iter().map(|(name, _, of, code)| (*name, of.size(), *code)).collect()
}

/// Returns the collectives' type with a name of NumPy or PyTorch.
pub(crate) fn of_collectives(name: &str) -> PyResult<DataType> {
    let found = TYPES.iter().find(|(known, ..)| *known == name);
    found
        .map(|(_, _, of, _)| *of)
        .ok_or_else(|| error::misuse(format!("there are no collectives of numbers of type {name}")))
}

/// Returns the code in DLPack and the bits of a type with a name of NumPy or PyTorch.
pub(crate) fn of_dlpack(name: &str) -> PyResult<(u8, u8)> {
    let short = name.strip_prefix("torch.").unwrap_or(name);
    let found = TYPES.iter().find(|(known, other, ..)| *known == short || *other == Some(short));
    found.map(|(_, _, of, code)| (*code, 8 * of.size() as u8)).ok_or_else(|| {
        let names: Vec<&str> = TYPES.iter().map(|(name, ..)| *name).collect();
        error::misuse(format!("argument 'data_type': {name:?} is not known; there are {}", names.join(", ")))
    })
}

/// Returns the name of a type, by the code of its kind in DLPack and its bits.
pub(crate) fn name_of_dlpack(kind: (u8, u32)) -> Option<&'static str> {
    let found = TYPES.iter().find(|(_, _, of, code)| (*code, 8 * of.size() as u32) == kind);
    found.map(|(name, ..)| *name)
}
