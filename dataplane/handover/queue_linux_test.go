package handover

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"testing"
)

// TestManyItems sends many items. They must arrive in order, complete and with their file
// descriptors. They must not need much more memory than their content.
func TestManyItems(t *testing.T) {
	const n = 1000
	in, out, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	text := func(i int) []byte { return fmt.Appendf(nil, "%0*d", 1+i%200, i) }
	sent := make(chan error, 1)
	go func() {
		defer out.Close()
		for i := range n {
			if err := out.Send(text(i), int(file.Fd())); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	before := heap()
	items, err := in.All()
	if err != nil || len(items) != n {
		t.Fatalf("received items = %d, %v; want %d", len(items), err, n)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if size := heap() - before; size > n<<10 {
		t.Errorf("memory for %d items of up to 200 bytes = %d bytes, want at most %d", n, size, n<<10)
	}
	for i, item := range items {
		if !bytes.Equal(item.Data, text(i)) || len(item.Files) != 1 {
			t.Fatalf("item %d = %q with %d descriptors, want %q with 1", i, item.Data, len(item.Files), text(i))
		}
		item.Close()
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
