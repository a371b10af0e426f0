// Goroutines make C blocks, pass them on, and others check, grow and free them.
package main

/*
#include <stdlib.h>
#include <string.h>
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"unsafe"
)

type block struct {
	at   unsafe.Pointer
	size C.size_t
	mark byte
}

func next(seed *uint64) uint64 {
	*seed ^= *seed << 13
	*seed ^= *seed >> 7
	*seed ^= *seed << 17
	return *seed
}

func build(seed *uint64) block {
	size := C.size_t(1 + next(seed)%2000)
	if next(seed)%50 == 0 {
		size *= 100
	}
	mark := byte(next(seed))
	var at unsafe.Pointer
	switch next(seed) % 3 {
	case 0:
		at = C.malloc(size)
	case 1:
		at = C.calloc(size, 1)
		if *(*byte)(unsafe.Add(at, size-1)) != 0 {
			panic("calloc")
		}
	default:
		size = (size + 63) &^ 63
		at = C.aligned_alloc(64, size)
		if uintptr(at)%64 != 0 {
			panic("aligned_alloc")
		}
	}
	C.memset(at, C.int(mark), size)
	return block{at, size, mark}
}

func check(b block) uint64 {
	bytes := unsafe.Slice((*byte)(b.at), int(b.size))
	if bytes[0] != b.mark || bytes[len(bytes)/2] != b.mark || bytes[len(bytes)-1] != b.mark {
		panic("a block changed")
	}
	return uint64(b.size) * uint64(b.mark)
}

func main() {
	rounds, _ := strconv.Atoi(os.Args[1])
	runtime.GOMAXPROCS(8)
	blocks := make(chan block, 256)
	var total uint64
	var makers, takers sync.WaitGroup
	for id := 0; id < 32; id++ {
		makers.Add(1)
		takers.Add(1)
		go func(seed uint64) {
			defer makers.Done()
			if seed%4 == 0 {
				runtime.LockOSThread()
			}
			for i := 0; i < rounds; i++ {
				blocks <- build(&seed)
			}
		}(uint64(id+1) * 0x9e3779b97f4a7c15)
		go func() {
			defer takers.Done()
			for b := range blocks {
				sum := check(b)
				if b.size%3 == 0 {
					grown := b.size*2 + 1
					b.at = C.realloc(b.at, grown)
					check(b)
				}
				atomic.AddUint64(&total, sum)
				C.free(b.at)
			}
		}()
	}
	makers.Wait()
	close(blocks)
	takers.Wait()
	fmt.Printf("%x\n", total)
}
