//! Arrays and mipmapped arrays: memory that textures are read from, behind a handle.

use crate::context::Context;
use crate::current;
use crate::driver::{Driver, driver};
use crate::faults::{Family, strike};
use crate::objects::{Kind, Objects, OfContext};
use crate::result::{
    CONTEXT_IS_DESTROYED, Code, INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY, code, give, take,
};
use std::ffi::c_uint;

/// `CUDA_ARRAY_DESCRIPTOR` of the 32-bit API.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Flat32 {
    width: u32,
    height: u32,
    format: c_uint,
    channels: c_uint,
}

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Flat {
    width: usize,
    height: usize,
    format: c_uint,
    channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR` of the 32-bit API.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Solid32 {
    width: u32,
    height: u32,
    depth: u32,
    format: c_uint,
    channels: c_uint,
    flags: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`. A height or depth of 0 is that of an array of fewer dimensions.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Solid {
    width: usize,
    height: usize,
    depth: usize,
    format: c_uint,
    channels: c_uint,
    flags: c_uint,
}

impl From<Flat> for Solid {
    fn from(flat: Flat) -> Self {
        Self {
            width: flat.width,
            height: flat.height,
            depth: 0,
            format: flat.format,
            channels: flat.channels,
            flags: 0,
        }
    }
}

impl From<Flat32> for Solid {
    fn from(flat: Flat32) -> Self {
        Self {
            width: flat.width as usize,
            height: flat.height as usize,
            depth: 0,
            format: flat.format,
            channels: flat.channels,
            flags: 0,
        }
    }
}

impl From<Solid32> for Solid {
    fn from(solid: Solid32) -> Self {
        Self {
            width: solid.width as usize,
            height: solid.height as usize,
            depth: solid.depth as usize,
            format: solid.format,
            channels: solid.channels,
            flags: solid.flags,
        }
    }
}

impl Solid {
    /// Bytes of one channel of one element.
    fn format_bytes(self) -> Option<u64> {
        match self.format {
            // Unsigned, signed, floating point.
            0x01 | 0x08 => Some(1),
            0x02 | 0x09 | 0x10 => Some(2),
            0x03 | 0x0a | 0x20 => Some(4),
            // Normalised, by bits and channels.
            0xc0..=0xc2 | 0xc9..=0xcb => Some(1),
            0xc3..=0xc8 => Some(2),
            _ => None,
        }
    }

    fn bytes(self) -> Result<u64, Code> {
        let format = self.format_bytes().ok_or(INVALID_VALUE)?;
        if self.width == 0
            || !matches!(self.channels, 1 | 2 | 4)
            || (self.height == 0 && self.depth != 0 && self.flags & LAYERED == 0)
        {
            return Err(INVALID_VALUE);
        }
        [
            self.height.max(1),
            self.depth.max(1),
            self.channels as usize,
        ]
        .into_iter()
        .try_fold(
            (self.width as u64)
                .checked_mul(format)
                .ok_or(INVALID_VALUE)?,
            |bytes, factor| bytes.checked_mul(factor as u64),
        )
        .ok_or(INVALID_VALUE)
    }

    /// The next smaller level of a mipmap.
    fn halved(self) -> Self {
        let half = |size: usize| if size == 0 { 0 } else { (size / 2).max(1) };
        let layered = self.flags & LAYERED != 0;
        Self {
            width: half(self.width),
            height: half(self.height),
            depth: if layered {
                self.depth
            } else {
                half(self.depth)
            },
            ..self
        }
    }

    fn levels(self, count: c_uint) -> Vec<Self> {
        let largest = self.width.max(self.height).max(self.depth).max(1);
        let all = largest.ilog2() + 1;
        std::iter::successors(Some(self), |level| Some(level.halved()))
            .take(count.clamp(1, all) as usize)
            .collect()
    }
}

/// `CUDA_ARRAY3D_LAYERED`: the depth is a number of layers.
const LAYERED: c_uint = 1;

#[derive(Debug, Clone)]
struct Array {
    shape: Solid,
    bytes: u64,
    gpu: usize,
    context: Context,
    /// The mipmap of which it is a level, and which has the memory.
    level_of: Option<u64>,
}

#[derive(Debug, Clone)]
struct Mipmap {
    /// Handles of arrays.
    levels: Vec<u64>,
    bytes: u64,
    gpu: usize,
    context: Context,
}

impl OfContext for Array {
    fn context(&self) -> Option<Context> {
        Some(self.context)
    }
}

impl OfContext for Mipmap {
    fn context(&self) -> Option<Context> {
        Some(self.context)
    }
}

/// The arrays of this process.
pub struct Arrays {
    arrays: Objects<Array>,
    mipmaps: Objects<Mipmap>,
}

impl Arrays {
    /// None yet.
    pub fn new() -> Self {
        Self {
            arrays: Objects::new(Kind::Array),
            mipmaps: Objects::new(Kind::Mipmap),
        }
    }

    /// Frees what belongs to a context that has just been destroyed.
    pub fn free_all_of(&self, driver: &Driver, context: Context) {
        for array in self.arrays.extract_of(context) {
            if array.level_of.is_none() {
                driver.client.free(array.gpu, array.bytes);
            }
        }
        for mipmap in self.mipmaps.extract_of(context) {
            driver.client.free(mipmap.gpu, mipmap.bytes);
        }
    }
}

/// Charges so many bytes to the current context's device.
fn charged(driver: &Driver, bytes: u64) -> Result<(usize, Context), Code> {
    let context = current::context()?;
    let gpu = driver.contexts.gpu(context);
    driver
        .client
        .allocate(gpu, bytes)
        .map_err(|_no_room| OUT_OF_MEMORY)?;
    Ok((gpu, context))
}

/// After something of a context was noted: takes it back if that was destroyed meanwhile.
fn settled(driver: &Driver, context: Context) -> Result<(), Code> {
    if driver.contexts.lives(context) {
        return Ok(());
    }
    driver.arrays.free_all_of(driver, context);
    Err(CONTEXT_IS_DESTROYED)
}

fn created<T: Copy + Into<Solid>>(to: *mut u64, shape: *const T) -> Result<(), Code> {
    let driver = driver()?;
    strike(Family::Array)?;
    current::context()?;
    // SAFETY: the caller of the driver API vouches for its pointer.
    let shape: Solid = unsafe { take(shape)? }.into();
    let bytes = shape.bytes()?;
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    let (gpu, context) = charged(driver, bytes)?;
    let array = driver.arrays.arrays.insert(Array {
        shape,
        bytes,
        gpu,
        context,
        level_of: None,
    });
    settled(driver, context)?;
    // SAFETY: the caller of the driver API vouches for its pointer.
    unsafe { give(to, array) }
}

/// `cuArrayCreate_v2`.
pub unsafe extern "C" fn create(to: *mut u64, shape: *const Flat) -> Code {
    code(created(to, shape))
}

/// `cuArrayCreate`, of the 32-bit API.
pub unsafe extern "C" fn create_v1(to: *mut u64, shape: *const Flat32) -> Code {
    code(created(to, shape))
}

/// `cuArray3DCreate_v2`.
pub unsafe extern "C" fn create_3d(to: *mut u64, shape: *const Solid) -> Code {
    code(created(to, shape))
}

/// `cuArray3DCreate`, of the 32-bit API.
pub unsafe extern "C" fn create_3d_v1(to: *mut u64, shape: *const Solid32) -> Code {
    code(created(to, shape))
}

/// `cuArrayDestroy`.
pub unsafe extern "C" fn destroy(handle: u64) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Free)?;
        let mut arrays = driver.arrays.arrays.lock();
        match arrays.get(handle) {
            None => return Err(INVALID_HANDLE),
            // It goes with its mipmap.
            Some(array) if array.level_of.is_some() => return Err(INVALID_HANDLE),
            Some(array) => driver.client.free(array.gpu, array.bytes),
        }
        arrays.remove(handle);
        Ok(())
    }))
}

/// `cuMipmappedArrayCreate`.
pub unsafe extern "C" fn create_mipmap(to: *mut u64, shape: *const Solid, levels: c_uint) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Array)?;
        current::context()?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        let shape = unsafe { take(shape)? };
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        let shapes = shape.levels(levels);
        let mut bytes: u64 = 0;
        for level in &shapes {
            bytes = bytes.checked_add(level.bytes()?).ok_or(INVALID_VALUE)?;
        }
        let (gpu, context) = charged(driver, bytes)?;
        let mipmap = driver.arrays.mipmaps.insert(Mipmap {
            levels: Vec::new(),
            bytes,
            gpu,
            context,
        });
        let of_level = |shape| {
            driver.arrays.arrays.insert(Array {
                shape,
                bytes: 0,
                gpu,
                context,
                level_of: Some(mipmap),
            })
        };
        let levels = shapes.into_iter().map(of_level).collect();
        if let Some(mipmap) = driver.arrays.mipmaps.lock().get_mut(mipmap) {
            mipmap.levels = levels;
        }
        settled(driver, context)?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, mipmap) }
    }))
}

/// `cuMipmappedArrayDestroy`.
pub unsafe extern "C" fn destroy_mipmap(handle: u64) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Free)?;
        let mipmap = driver.arrays.mipmaps.remove(handle).ok_or(INVALID_HANDLE)?;
        for level in mipmap.levels {
            driver.arrays.arrays.remove(level);
        }
        driver.client.free(mipmap.gpu, mipmap.bytes);
        Ok(())
    }))
}

/// `cuMipmappedArrayGetLevel`.
pub unsafe extern "C" fn level(to: *mut u64, mipmap: u64, level: c_uint) -> Code {
    code(driver().and_then(|driver| {
        let mipmap = driver.arrays.mipmaps.get(mipmap).ok_or(INVALID_HANDLE)?;
        let array = mipmap.levels.get(level as usize).ok_or(INVALID_VALUE)?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, *array) }
    }))
}

fn shape_of(handle: u64) -> Result<Solid, Code> {
    let array = driver()?.arrays.arrays.get(handle).ok_or(INVALID_HANDLE)?;
    Ok(array.shape)
}

/// `cuArray3DGetDescriptor_v2`.
pub unsafe extern "C" fn descriptor_3d(to: *mut Solid, array: u64) -> Code {
    // SAFETY: the caller of the driver API vouches for its pointer.
    code(shape_of(array).and_then(|shape| unsafe { give(to, shape) }))
}

/// `cuArrayGetDescriptor_v2`.
pub unsafe extern "C" fn descriptor(to: *mut Flat, array: u64) -> Code {
    code(shape_of(array).and_then(|shape| {
        let flat = Flat {
            width: shape.width,
            height: shape.height,
            format: shape.format,
            channels: shape.channels,
        };
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, flat) }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOATS: Solid = Solid {
        width: 100,
        height: 10,
        depth: 0,
        format: 0x20,
        channels: 4,
        flags: 0,
    };

    #[test]
    fn bytes_come_from_the_shape() {
        assert_eq!(FLOATS.bytes(), Ok(100 * 10 * 4 * 4));
        let solid = Solid { depth: 3, ..FLOATS };
        assert_eq!(solid.bytes(), Ok(100 * 10 * 3 * 4 * 4));
        let line = Solid {
            height: 0,
            ..FLOATS
        };
        assert_eq!(line.bytes(), Ok(100 * 4 * 4));
        for wrong in [
            Solid { width: 0, ..FLOATS },
            Solid {
                channels: 3,
                ..FLOATS
            },
            Solid {
                format: 7,
                ..FLOATS
            },
            Solid {
                width: usize::MAX,
                ..FLOATS
            },
        ] {
            assert_eq!(wrong.bytes(), Err(INVALID_VALUE), "{wrong:?}");
        }
    }

    #[test]
    fn levels_are_halved_down_to_one_element() {
        let sizes: Vec<_> = FLOATS
            .levels(99)
            .iter()
            .map(|level| (level.width, level.height, level.depth))
            .collect();
        assert_eq!(
            sizes,
            [
                (100, 10, 0),
                (50, 5, 0),
                (25, 2, 0),
                (12, 1, 0),
                (6, 1, 0),
                (3, 1, 0),
                (1, 1, 0)
            ]
        );
        assert_eq!(FLOATS.levels(0).len(), 1);
    }
}
