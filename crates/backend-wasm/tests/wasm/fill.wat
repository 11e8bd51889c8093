;; Fills a file `fill` in the directory that it is called in, for as long as it may.
(module
      (import "wasi_snapshot_preview1" "fd_prestat_get" (func $stat (param i32 i32) (result i32)))
      (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
      (import "wasi_snapshot_preview1" "path_open" (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
      (memory (export "memory") 2)
      (data (i32.const 600) "fill")
      (func (export "_start") (local $fd i32)
        (local.set $fd (i32.const 3))
        (loop $l
          (if (i32.eqz (call $stat (local.get $fd) (i32.const 0))) (then
            (local.set $fd (i32.add (local.get $fd) (i32.const 1))) (br $l))))
        (if (call $open (i32.sub (local.get $fd) (i32.const 1)) (i32.const 0) (i32.const 600) (i32.const 4) (i32.const 1)
              (i64.const 64) (i64.const 0) (i32.const 0) (i32.const 40)) (then unreachable))
        (i32.store (i32.const 16) (i32.const 65536)) (i32.store (i32.const 20) (i32.const 65536))
        (loop $m
          (br_if $m (i32.eqz (call $write (i32.load (i32.const 40)) (i32.const 16) (i32.const 1) (i32.const 24)))))))
