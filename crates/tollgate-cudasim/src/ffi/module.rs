//! Modules, kernels, how many of them fit.

use crate::code::Code;
use crate::device::{MULTIPROCESSORS, SHARED_BYTES, THREADS, WARP};
use crate::module::Shape;
use crate::raw::{self, Arguments, Out, SharedBytes, Text, Untyped};
use crate::state::Call;

api! {
    fn cuModuleLoad(out: Out<usize>, path: Text) |it| it.answer(out, |it| {
        let source = std::fs::read_to_string(path.get()?).map_err(|_| Code::FILE_NOT_FOUND)?;
        it.load_module(&source)
    });
    fn cuModuleLoadData(out: Out<usize>, image: Text) |it| {
        it.answer(out, |it| it.load_module(&image.get()?))
    };
    /// Options are for a compiler that there is not.
    fn cuModuleLoadDataEx(out: Out<usize>, image: Text, _count: u32, _options: Untyped, _values: Untyped) |it| {
        it.answer(out, |it| it.load_module(&image.get()?))
    };
    fn cuModuleUnload(module: usize) |it| it.unload_module(module);
    fn cuModuleGetFunction(out: Out<usize>, module: usize, name: Text) |it| {
        it.answer(out, |it| it.function_of(module, &name.get()?))
    };
    fn cuModuleGetGlobal_v2(out: Out<u64>, bytes: Out<usize>, module: usize, name: Text) |it| {
        let (address, size) = it.variable_of(module, &name.get()?)?;
        out.set_if_asked(address);
        bytes.set_if_asked(size);
        Ok(())
    };
    fn cuFuncGetModule(out: Out<usize>, function: usize) |it| {
        it.answer(out, |it| Ok(it.function(function)?.module))
    };
    fn cuFuncGetAttribute(out: Out<i32>, attribute: i32, function: usize) |it| it.answer(out, |it| {
        let function = it.function(function)?;
        let set = function.attributes.get(&attribute).copied();
        Ok(set.unwrap_or(match attribute {
            // threads of a block, registers, versions of the code
            0 => 1024,
            4 => 32,
            5 | 6 => 80,
            1..=3 | 7..=9 => 0,
            _ => return Err(Code::INVALID_VALUE),
        }))
    });
    fn cuFuncSetAttribute(function: usize, attribute: i32, value: i32) |it| {
        it.function(function)?.attributes.insert(attribute, value);
        Ok(())
    };
    fn cuFuncSetCacheConfig(function: usize, _config: u32) |it| it.function(function).map(drop);
    fn cuFuncSetSharedMemConfig(function: usize, _config: u32) |it| it.function(function).map(drop);
    fn cuLaunchKernel(
        function: usize,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared_bytes: u32,
        stream: usize,
        arguments: Arguments,
        extra: Arguments,
    ) |it| {
        // arguments as one piece of memory
        if !extra.is_null() {
            return Err(Code::NOT_SUPPORTED);
        }
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        it.launch(function, Shape { grid, block, shared_bytes }, stream, &arguments)
    };

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(out: Out<i32>, function: usize, block: i32, shared: usize) |it| {
        it.answer(out, |it| blocks(it, function, block, shared))
    };
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out: Out<i32>, function: usize, block: i32, shared: usize, _flags: u32) |it| {
        it.answer(out, |it| blocks(it, function, block, shared))
    };
    fn cuOccupancyMaxPotentialBlockSize(grid: Out<i32>, block: Out<i32>, function: usize, shared_of: SharedBytes, shared: usize, limit: i32) |it| {
        let size = if limit > 0 { limit.min(1024) / WARP * WARP } else { 1024 }.max(WARP);
        let shared = raw::shared_bytes(shared_of, size).unwrap_or(shared);
        let fit = blocks(it, function, size, shared)?;
        grid.set(fit * MULTIPROCESSORS)?;
        block.set(size)
    };
    fn cuOccupancyMaxPotentialBlockSizeWithFlags(grid: Out<i32>, block: Out<i32>, function: usize, shared_of: SharedBytes, shared: usize, limit: i32, _flags: u32) |it| {
        let size = if limit > 0 { limit.min(1024) / WARP * WARP } else { 1024 }.max(WARP);
        let shared = raw::shared_bytes(shared_of, size).unwrap_or(shared);
        let fit = blocks(it, function, size, shared)?;
        grid.set(fit * MULTIPROCESSORS)?;
        block.set(size)
    };
    fn cuOccupancyAvailableDynamicSMemPerBlock(out: Out<usize>, function: usize, blocks: i32, block: i32) |it| it.answer(out, |it| {
        it.function(function)?;
        if blocks < 1 || block < 1 {
            return Err(Code::INVALID_VALUE);
        }
        Ok(SHARED_BYTES / blocks)
    });
}

/// How many blocks of this many threads a multiprocessor takes at once.
fn blocks(it: &mut Call, function: usize, threads: i32, shared: usize) -> Result<i32, Code> {
    it.function(function)?;
    if !(1..=1024).contains(&threads) {
        return Err(Code::INVALID_VALUE);
    }
    let by_threads = THREADS / ((threads + WARP - 1) / WARP * WARP);
    let shared = i32::try_from(shared).map_err(|_| Code::INVALID_VALUE)?;
    Ok(if shared == 0 { by_threads } else { by_threads.min(SHARED_BYTES / shared) }.min(32))
}
