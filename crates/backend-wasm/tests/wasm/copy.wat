;; Passes on what it reads.
(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 2)
  (func (export "_start")
    (loop $more
      (i32.store (i32.const 0) (i32.const 1024)) (i32.store (i32.const 4) (i32.const 8192))
      (if (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)) (then (call $exit (i32.const 3))))
      (if (i32.load (i32.const 8)) (then
        (i32.store (i32.const 4) (i32.load (i32.const 8)))
        (if (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 12)) (then (call $exit (i32.const 4))))
        (br $more))))))
