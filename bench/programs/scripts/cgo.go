// Goroutines make C blocks, pass them on, and others check, grow and free them.
package main

// #include <stdlib.h>
// #include <string.h>
import "C"

import (
	"fmt"
	"math/rand"
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

func build(random *rand.Rand) block {
	b := block{size: C.size_t(1 + random.Intn(2000)), mark: byte(random.Int())}
	if random.Intn(50) == 0 {
		b.size *= 100
	}
	switch random.Intn(3) {
	case 0:
		b.at = C.malloc(b.size)
	case 1:
		b.at = C.calloc(b.size, 1)
		insist(*(*byte)(unsafe.Add(b.at, b.size-1)) == 0)
	default:
		b.at = C.aligned_alloc(64, (b.size+63)&^63)
		insist(uintptr(b.at)%64 == 0)
	}
	C.memset(b.at, C.int(b.mark), b.size)
	return b
}

func check(b block) {
	for _, at := range []C.size_t{0, b.size / 2, b.size - 1} {
		insist(*(*byte)(unsafe.Add(b.at, at)) == b.mark)
	}
}

func insist(right bool) {
	if !right {
		panic("a block is not what it should be")
	}
}

func main() {
	rounds, _ := strconv.Atoi(os.Args[1])
	runtime.GOMAXPROCS(8)
	blocks := make(chan block, 256)
	var total atomic.Uint64
	var makers, takers sync.WaitGroup
	makers.Add(32)
	takers.Add(32)
	for id := 0; id < 32; id++ {
		go func(id int) {
			defer makers.Done()
			if id%4 == 0 {
				runtime.LockOSThread()
			}
			random := rand.New(rand.NewSource(int64(id)))
			for i := 0; i < rounds; i++ {
				blocks <- build(random)
			}
		}(id)
		go func() {
			defer takers.Done()
			for b := range blocks {
				check(b)
				if b.size%3 == 0 {
					b.at = C.realloc(b.at, b.size*2+1)
					check(b)
				}
				total.Add(uint64(b.size) * uint64(b.mark))
				C.free(b.at)
			}
		}()
	}
	makers.Wait()
	close(blocks)
	takers.Wait()
	fmt.Printf("%x\n", total.Load())
}
