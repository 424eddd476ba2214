//! Arrays and mipmapped arrays.

use crate::common::{CONTEXT, call, ready};
use gputrace_test_rig::functions;
use std::ffi::c_uint;

#[repr(C)]
struct Flat {
    width: usize,
    height: usize,
    format: c_uint,
    channels: c_uint,
}

#[repr(C)]
struct Solid {
    width: usize,
    height: usize,
    depth: usize,
    format: c_uint,
    channels: c_uint,
    flags: c_uint,
}

functions! {
    struct Functions {
        create = "cuArrayCreate_v2": fn(*mut u64, *const Flat);
        create_3d = "cuArray3DCreate_v2": fn(*mut u64, *const Solid);
        destroy = "cuArrayDestroy": fn(u64);
        create_mipmap = "cuMipmappedArrayCreate": fn(*mut u64, *const Solid, c_uint);
        destroy_mipmap = "cuMipmappedArrayDestroy": fn(u64);
        level = "cuMipmappedArrayGetLevel": fn(*mut u64, u64, c_uint);
    }
}

const FLOAT: c_uint = 0x20;

#[test]
fn arrays_take_what_their_shape_says() {
    let (_turn, cuda) = ready();
    let f = Functions::load(|name| cuda.find(name)).unwrap();
    let context = cuda.create(0);
    let (mut flat, mut solid, mut mipmap) = (0, 0, 0);
    let shape = Flat {
        width: 1024,
        height: 1024,
        format: FLOAT,
        channels: 4,
    };
    assert_eq!(call!(f.create, &raw mut flat, &raw const shape), 0);
    assert_eq!(cuda.used(), CONTEXT + (16 << 20));
    let mut cube = Solid {
        width: 64,
        height: 64,
        depth: 64,
        format: FLOAT,
        channels: 1,
        flags: 0,
    };
    assert_eq!(call!(f.create_3d, &raw mut solid, &raw const cube), 0);
    assert_eq!(cuda.used(), CONTEXT + (17 << 20));
    assert_eq!(
        call!(f.create_mipmap, &raw mut mipmap, &raw const cube, 3),
        0
    );
    let levels = (1 << 20) + (1 << 17) + (1 << 14);
    assert_eq!(cuda.used(), CONTEXT + (17 << 20) + levels);
    let mut level = 0;
    assert_eq!(call!(f.level, &raw mut level, mipmap, 2), 0);
    assert_eq!(call!(f.destroy, level), 400, "its mipmap's");
    assert_eq!(call!(f.level, &raw mut level, mipmap, 3), 1);
    assert_eq!(call!(f.destroy, flat), 0);
    assert_eq!(call!(f.destroy, flat), 400);
    assert_eq!(call!(f.destroy_mipmap, mipmap), 0);
    assert_eq!(call!(f.destroy_mipmap, mipmap), 400);
    assert_eq!(cuda.used(), CONTEXT + (1 << 20));
    cube.width = 0;
    assert_eq!(call!(f.create_3d, &raw mut solid, &raw const cube), 1);
    cube.width = 1 << 40;
    assert_eq!(call!(f.create_3d, &raw mut solid, &raw const cube), 2);
    cuda.destroy(context);
    let context = cuda.create(0);
    assert_eq!(cuda.used(), CONTEXT, "gone with their context");
    cuda.destroy(context);
}
