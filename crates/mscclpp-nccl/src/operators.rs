//! `ncclDataType_t` and `ncclRedOp_t`: types, the operations of NCCL, and those that a program makes for a communicator.

use std::{
    ffi::{c_int, c_void},
    ptr,
};

use half::{bf16, f16};
use mscclpp::DevicePtr;
use mscclpp_collectives::{DataType, ReduceOp};
use parking_lot::Mutex;

use crate::failure::Failure;

/// `ncclNumOps`: the first number of an operation that a program made.
const FIRST: c_int = 5;
/// `ncclScalarDevice` and `ncclScalarHostImmediate`: where a factor is.
const ON_DEVICE: c_int = 0;
const ON_HOST: c_int = 1;

/// The operations that were made for a communicator, by number.
#[derive(Default)]
pub(crate) struct Operators(Mutex<Vec<Option<Operator>>>);

#[derive(Clone, Copy)]
struct Operator {
    op: ReduceOp,
    data_type: DataType,
}

impl Operators {
    /// `ncclRedOpCreatePreMulSum`: the number of a new operation.
    ///
    /// # Safety
    /// `scalar` is null, or points to a number of the type, in host or device memory as `residence` says. A number in device
    /// memory stays there as long as calls use the operation.
    pub(crate) unsafe fn create(
        &self,
        scalar: *const c_void,
        number: c_int,
        residence: c_int,
    ) -> Result<c_int, Failure> {
        let data_type = data_type(number)?;
        if scalar.is_null() {
            return Err(Failure::argument("`scalar` is NULL"));
        }
        let op = match residence {
            // Each call reads the factor when it runs.
            ON_DEVICE => ReduceOp::PreMulSumAt(DevicePtr(scalar.expose_provenance() as u64)),
            // SAFETY: `scalar` is not null, and the caller promised that it points to a number.
            ON_HOST => ReduceOp::PreMulSum(unsafe { read(scalar, data_type) }),
            _ => return Err(Failure::argument(format!("`residence` is {residence}; 0 and 1 are known"))),
        };
        let operator = Operator { op, data_type };
        let mut operators = self.0.lock();
        let at = operators.iter().position(Option::is_none).unwrap_or(operators.len());
        match operators.get_mut(at) {
            Some(free) => *free = Some(operator),
            None => operators.push(Some(operator)),
        }
        c_int::try_from(at).map(|at| at + FIRST).map_err(|_| Failure::usage("too many operations"))
    }

    /// `ncclRedOpDestroy`.
    pub(crate) fn destroy(&self, number: c_int) -> Result<(), Failure> {
        let at = place(number);
        let gone = at.and_then(|at| self.0.lock().get_mut(at).and_then(Option::take));
        gone.map(drop).ok_or_else(|| unknown(number))
    }

    /// The operation with a number, for a call on data of `data_type`.
    pub(crate) fn of(&self, number: c_int, data_type: DataType) -> Result<ReduceOp, Failure> {
        if let Some(operation) = built_in(number) {
            return Ok(operation);
        }
        let operator = place(number).and_then(|at| self.0.lock().get(at).copied().flatten());
        let operator = operator.ok_or_else(|| unknown(number))?;
        if operator.data_type != data_type {
            return Err(Failure::argument(format!(
                "operation {number} was made for numbers of type {:?}, and is called with {data_type:?}",
                operator.data_type
            )));
        }
        Ok(operator.op)
    }
}

/// The type that a number of `ncclDataType_t` stands for.
pub(crate) fn data_type(number: c_int) -> Result<DataType, Failure> {
    /// `ncclNumTypes`. The collectives have two more types, which NCCL does not have.
    const TYPES: usize = 12;
    let known = usize::try_from(number).ok().filter(|number| *number < TYPES);
    known
        .map(|number| DataType::ALL[number])
        .ok_or_else(|| Failure::argument(format!("`datatype` is {number}, which is no ncclDataType_t")))
}

/// The built-in operation that a number of `ncclRedOp_t` stands for, if it is one.
fn built_in(number: c_int) -> Option<ReduceOp> {
    let operations = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg];
    usize::try_from(number).ok().and_then(|number| operations.get(number).copied())
}

/// The index in the list of an operation that the program made.
fn place(number: c_int) -> Option<usize> {
    number.checked_sub(FIRST).and_then(|at| usize::try_from(at).ok())
}

fn unknown(number: c_int) -> Failure {
    Failure::argument(format!("`op` is {number}, which is no operation of this communicator"))
}

/// Reads a factor.
///
/// # Safety
/// `scalar` points to a number of the type.
unsafe fn read(scalar: *const c_void, data_type: DataType) -> f64 {
    macro_rules! number {
        ($type:ty) => {
            // SAFETY: the caller's promise; the address need not be aligned.
            unsafe { ptr::read_unaligned(scalar.cast::<$type>()) }
        };
    }
    #[allow(
        clippy::cast_precision_loss,
        reason = "whole factors beyond 2^53 are rounded, as the documentation says"
    )]
    match data_type {
        DataType::I8 => number!(i8).into(),
        DataType::U8 => number!(u8).into(),
        DataType::I16 => number!(i16).into(),
        DataType::U16 => number!(u16).into(),
        DataType::I32 => number!(i32).into(),
        DataType::U32 => number!(u32).into(),
        DataType::I64 => number!(i64) as f64,
        DataType::U64 => number!(u64) as f64,
        DataType::F16 => number!(f16).into(),
        DataType::Bf16 => number!(bf16).into(),
        DataType::F32 => number!(f32).into(),
        DataType::F64 => number!(f64),
        DataType::F8E4m3 => of_e4m3(number!(u8)),
        // An E5M2 has the bits of the upper half of an f16.
        DataType::F8E5m2 => f16::from_bits(u16::from(number!(u8)) << 8).into(),
        _ => f64::NAN,
    }
}

/// The value of an E4M3: 4 bits of exponent with a bias of 7, and 3 bits of fraction.
fn of_e4m3(bits: u8) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 3 & 0xf), f64::from(bits & 7) / 8.0);
    let magnitude = match (exponent, bits & 7) {
        (15, 7) => f64::NAN,
        (0, _) => fraction * (-6f64).exp2(),
        _ => (1.0 + fraction) * f64::from(exponent - 7).exp2(),
    };
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made<T>(operators: &Operators, number: &T, data_type: c_int) -> Result<c_int, Failure> {
        // SAFETY: tests pass a number of the type that `data_type` names.
        unsafe { operators.create(ptr::from_ref(number).cast(), data_type, ON_HOST) }
    }

    fn factor<T>(number: &T, data_type: DataType) -> f64 {
        let operators = Operators::default();
        let op = made(&operators, number, data_type as c_int).unwrap();
        match operators.of(op, data_type).unwrap() {
            ReduceOp::PreMulSum(factor) => factor,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn factors_of_every_type_are_read() {
        assert_eq!(factor(&-3i8, DataType::I8), -3.0);
        assert_eq!(factor(&200u8, DataType::U8), 200.0);
        assert_eq!(factor(&-7i32, DataType::I32), -7.0);
        assert_eq!(factor(&7u32, DataType::U32), 7.0);
        assert_eq!(factor(&(-1i64 << 40), DataType::I64), -(1i64 << 40) as f64);
        assert_eq!(factor(&(1u64 << 40), DataType::U64), (1u64 << 40) as f64);
        assert_eq!(factor(&f16::from_f32(0.5), DataType::F16), 0.5);
        assert_eq!(factor(&bf16::from_f32(-2.0), DataType::Bf16), -2.0);
        assert_eq!(factor(&0.25f32, DataType::F32), 0.25);
        assert_eq!(factor(&0.1f64, DataType::F64), 0.1);
        assert_eq!(factor(&0x38u8, DataType::F8E4m3), 1.0);
        assert_eq!(factor(&0xc4u8, DataType::F8E4m3), -3.0);
        assert_eq!(factor(&0x01u8, DataType::F8E4m3), 1.0 / 512.0);
        assert_eq!(factor(&0x7eu8, DataType::F8E4m3), 448.0);
        assert_eq!(factor(&0x3cu8, DataType::F8E5m2), 1.0);
    }

    #[test]
    fn an_operation_is_of_its_type_until_it_is_destroyed() {
        let operators = Operators::default();
        let (a, b) = (made(&operators, &1f32, 7).unwrap(), made(&operators, &2f64, 8).unwrap());
        assert_eq!((a, b), (5, 6));
        assert!(operators.of(a, DataType::F64).unwrap_err().text.contains("F32"));
        operators.destroy(a).unwrap();
        assert!(operators.of(a, DataType::F32).is_err() && operators.destroy(a).is_err());
        assert_eq!(made(&operators, &3f32, 7).unwrap(), a, "numbers are used again");
        assert!(operators.of(-1, DataType::F32).is_err() && operators.destroy(c_int::MIN + 10).is_err());
        assert_eq!(operators.of(4, DataType::F32), Ok(ReduceOp::Avg));
    }

    #[test]
    fn a_factor_in_device_memory_is_read_by_the_calls() {
        let operators = Operators::default();
        let scalar = ptr::without_provenance(4096);
        // SAFETY: the address is not read, as no call is made.
        let op = unsafe { operators.create(scalar, 7, ON_DEVICE) }.unwrap();
        assert_eq!(operators.of(op, DataType::F32), Ok(ReduceOp::PreMulSumAt(DevicePtr(4096))));
        // SAFETY: the address is not read, as 2 is refused.
        let refused = unsafe { operators.create(scalar, 7, 2) };
        assert!(refused.unwrap_err().text.contains("`residence` is 2"));
    }
}
