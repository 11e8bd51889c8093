;; One way to end.
(module (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
        (memory (export "memory") 1) (table 1 funcref)
        (func $deep (param i32) (result i32) (i32.add (call $deep (i32.add (local.get 0) (i32.const 1))) (i32.const 1)))
        (func (export "_start") (loop $l (drop (memory.grow (i32.const 256))) (br $l))))
