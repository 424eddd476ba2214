//! Physical memory, addresses, mappings.

use crate::common::{CONTEXT, Cuda, TOTAL, call, ready};
use gputrace_test_rig::functions;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{FromRawFd, OwnedFd};

#[repr(C)]
struct Properties {
    kind: c_uint,
    handle_types: c_uint,
    location: [c_int; 2],
    rest: [u64; 2],
}

const ON_DEVICE_0: Properties = Properties {
    kind: 1,
    handle_types: 1,
    location: [1, 0],
    rest: [0; 2],
};

functions! {
    struct Functions {
        create = "cuMemCreate": fn(*mut u64, usize, *const Properties, u64);
        release = "cuMemRelease": fn(u64);
        retain = "cuMemRetainAllocationHandle": fn(*mut u64, u64);
        map = "cuMemMap": fn(u64, usize, usize, u64, u64);
        unmap = "cuMemUnmap": fn(u64, usize);
        set_access = "cuMemSetAccess": fn(u64, usize, *const [c_int; 3], usize);
        reserve = "cuMemAddressReserve": fn(*mut u64, usize, usize, u64, u64);
        free_addresses = "cuMemAddressFree": fn(u64, usize);
        granularity = "cuMemGetAllocationGranularity": fn(*mut usize, *const Properties, c_uint);
        export = "cuMemExportToShareableHandle": fn(*mut c_int, u64, c_uint, u64);
        import = "cuMemImportFromShareableHandle": fn(*mut u64, *mut c_void, c_uint);
        multicast = "cuMulticastCreate": fn(*mut u64, *const [u64; 4]);
    }
}

const MIB: usize = 1 << 20;
const ACCESS: [c_int; 3] = [1, 0, 3];

impl Functions {
    fn new(cuda: &Cuda) -> Self {
        Self::load(|name| cuda.find(name)).unwrap()
    }

    fn created(&self, size: usize) -> u64 {
        let mut handle = 0;
        assert_eq!(
            call!(self.create, &raw mut handle, size, &ON_DEVICE_0, 0),
            0
        );
        handle
    }

    fn reserved(&self, size: usize) -> u64 {
        let mut address = 0;
        assert_eq!(call!(self.reserve, &raw mut address, size, 0, 0, 0), 0);
        address
    }
}

#[test]
fn physical_memory_is_used_until_it_is_released_and_unmapped() {
    let (_turn, cuda) = ready();
    let f = Functions::new(cuda);
    let context = cuda.create(0);
    let handle = f.created(64 * MIB);
    let address = f.reserved(256 * MIB);
    assert_eq!(cuda.used(), CONTEXT + 64 * MIB, "addresses are not memory");
    assert_eq!(call!(f.map, address, 64 * MIB, 0, handle, 0), 0);
    assert_eq!(call!(f.set_access, address, 64 * MIB, &ACCESS, 1), 0);
    assert_eq!(call!(f.release, handle), 0);
    assert_eq!(call!(f.release, handle), 1, "released twice");
    assert_eq!(cuda.used(), CONTEXT + 64 * MIB, "still mapped");
    assert_eq!(
        call!(f.free_addresses, address, 256 * MIB),
        1,
        "still mapped"
    );
    let mut again = 0;
    assert_eq!(call!(f.retain, &raw mut again, address + 4096), 0);
    assert_eq!(again, handle);
    assert_eq!(call!(f.unmap, address, 64 * MIB), 0);
    assert_eq!(cuda.used(), CONTEXT + 64 * MIB, "retained");
    assert_eq!(call!(f.release, again), 0);
    assert_eq!(cuda.used(), CONTEXT);
    assert_eq!(call!(f.set_access, address, 64 * MIB, &ACCESS, 1), 1);
    assert_eq!(
        call!(f.free_addresses, address, 128 * MIB),
        1,
        "not the whole"
    );
    assert_eq!(call!(f.free_addresses, address, 256 * MIB), 0);
    assert_eq!(f.reserved(256 * MIB), address, "the next one has it");
    assert_eq!(call!(f.free_addresses, address, 256 * MIB), 0);
    cuda.destroy(context);
}

#[test]
fn mappings_lie_within_a_reservation_and_do_not_overlap() {
    let (_turn, cuda) = ready();
    let f = Functions::new(cuda);
    let (first, second) = (f.created(4 * MIB), f.created(2 * MIB));
    let address = f.reserved(8 * MIB);
    assert_eq!(call!(f.map, address, 4 * MIB, 0, first, 0), 0);
    let map = |at, size, offset, handle| call!(f.map, at, size, offset, handle, 0);
    let mib = MIB as u64;
    assert_eq!(map(address + 2 * mib, 2 * MIB, 0, second), 1, "overlaps");
    assert_eq!(
        map(address + 4 * mib, 4 * MIB, 0, second),
        1,
        "more than it has"
    );
    assert_eq!(map(address + 8 * mib, 2 * MIB, 0, second), 1, "outside");
    assert_eq!(map(address + 4 * mib, MIB, 0, second), 1, "not granular");
    assert_eq!(map(address + 4 * mib, 2 * MIB, 0, 77), 1, "no such handle");
    assert_eq!(map(address + 4 * mib, 2 * MIB, 0, second), 0);
    assert_eq!(map(address + 6 * mib, 2 * MIB, 2 * MIB, first), 0);
    assert_eq!(call!(f.unmap, address, 2 * MIB), 1, "half a mapping");
    assert_eq!(call!(f.unmap, address, 8 * MIB), 0, "several at once");
    assert_eq!(call!(f.unmap, address, 4 * MIB), 1);
    for handle in [first, second] {
        assert_eq!(call!(f.release, handle), 0);
    }
    assert_eq!(call!(f.free_addresses, address, 8 * MIB), 0);
}

#[test]
fn what_cannot_be_created_is_refused() {
    let (_turn, cuda) = ready();
    let f = Functions::new(cuda);
    let context = cuda.create(0);
    let mut handle = 0;
    let mut create = |size, properties: Properties| {
        call!(f.create, &raw mut handle, size, &raw const properties, 0)
    };
    assert_eq!(create(MIB, ON_DEVICE_0), 1);
    assert_eq!(create(0, ON_DEVICE_0), 1);
    assert_eq!(create(TOTAL, ON_DEVICE_0), 2);
    assert_eq!(
        create(
            2 * MIB,
            Properties {
                kind: 0,
                ..ON_DEVICE_0
            }
        ),
        1
    );
    assert_eq!(
        create(
            2 * MIB,
            Properties {
                location: [1, 9],
                ..ON_DEVICE_0
            }
        ),
        101
    );
    assert_eq!(
        create(
            2 * MIB,
            Properties {
                location: [9, 0],
                ..ON_DEVICE_0
            }
        ),
        1
    );
    assert_eq!(cuda.used(), CONTEXT);
    assert_eq!(
        create(
            2 * MIB,
            Properties {
                location: [3, 0],
                ..ON_DEVICE_0
            }
        ),
        0
    );
    assert_eq!(cuda.used(), CONTEXT, "the host's memory");
    assert_eq!(call!(f.release, handle), 0);
    let mut granularity = 0;
    assert_eq!(
        call!(f.granularity, &raw mut granularity, &ON_DEVICE_0, 0),
        0
    );
    assert_eq!(granularity, 2 * MIB);
    let mut multicast = 0;
    assert_eq!(
        call!(f.multicast, &raw mut multicast, &[2, 4 << 20, 1, 0]),
        0
    );
    assert_eq!(cuda.used(), CONTEXT, "an object only");
    assert_eq!(call!(f.release, multicast), 0);
    cuda.destroy(context);
}

#[test]
fn the_address_space_of_a_process_is_limited() {
    let (_turn, cuda) = ready();
    let f = Functions::new(cuda);
    let size = TOTAL + TOTAL / 16;
    cuda.set("address_space", 31 * size as u64 - 1);
    let reserved: Vec<_> = (0..30).map(|_| f.reserved(size)).collect();
    let mut address = 0;
    assert_eq!(call!(f.reserve, &raw mut address, size, 0, 0, 0), 2);
    assert_eq!(call!(f.free_addresses, reserved[7], size), 0);
    assert_eq!(f.reserved(size), reserved[7]);
    cuda.set("address_space", 0);
    let aligned = 1 << 30;
    assert_eq!(
        call!(f.reserve, &raw mut address, 2 * MIB, aligned, 0, 0),
        0
    );
    assert_eq!(address % aligned as u64, 0);
    assert_eq!(call!(f.free_addresses, address, 2 * MIB), 0);
    assert_eq!(call!(f.reserve, &raw mut address, 100, 0, 0, 0), 1);
    for address in reserved {
        assert_eq!(call!(f.free_addresses, address, size), 0);
    }
}

#[test]
fn an_exported_descriptor_keeps_the_memory() {
    let (_turn, cuda) = ready();
    let f = Functions::new(cuda);
    let context = cuda.create(0);
    let handle = f.created(16 * MIB);
    let (mut first, mut second) = (-1, -1);
    assert_eq!(
        call!(f.export, &raw mut first, handle, 8, 0),
        1,
        "not created for it"
    );
    assert_eq!(call!(f.export, &raw mut first, handle, 1, 0), 0);
    assert_eq!(call!(f.export, &raw mut second, handle, 1, 0), 0);
    assert_eq!(cuda.used(), CONTEXT + 16 * MIB);
    // SAFETY: given by the export, and nobody else's.
    let files = unsafe { [OwnedFd::from_raw_fd(first), OwnedFd::from_raw_fd(second)] };
    assert_eq!(call!(f.release, handle), 0);
    assert_eq!(cuda.used(), CONTEXT + 16 * MIB, "two descriptors hold it");
    let mut imported = 0;
    let by_value = std::ptr::without_provenance_mut(usize::try_from(first).unwrap());
    assert_eq!(call!(f.import, &raw mut imported, by_value, 1), 0);
    drop(files);
    assert_eq!(
        cuda.used(),
        CONTEXT + 16 * MIB,
        "the imported handle holds it"
    );
    assert_eq!(call!(f.release, imported), 0);
    assert_eq!(cuda.used(), CONTEXT);
    assert_eq!(
        call!(f.import, &raw mut imported, std::ptr::null_mut(), 1),
        1
    );
    cuda.destroy(context);
}
