package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"
)

// insideFlag makes this program carry out orders, in the guest. It is for itself.
const insideFlag = "-inside"

// orders say what to run in the guest.
type orders struct {
	// Test2JSON is the program of that name.
	Test2JSON string
	// Limit is for all of it; Parallel is how many packages run at once.
	Limit    time.Duration
	Parallel int
	// Flags are those of the test binaries.
	Flags    []string
	Packages []order
}

// order is one package, the folder that its tests run in, and their binary.
type order struct{ Path, Folder, Binary string }

// inside carries out the orders of a file, writes events as go test -json does, and returns the exit status.
func inside(file string, out io.Writer) int {
	var o orders
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "report: reading the orders: %v\n", err)
		return 1
	}
	w := &lineWriter{out: out}
	began := time.Now()
	var running sync.WaitGroup
	var failed sync.Map
	free := make(chan struct{}, max(1, o.Parallel))
	for _, k := range o.Packages {
		free <- struct{}{}
		running.Go(func() {
			if err := k.run(o, o.Limit-time.Since(began), w); err != nil {
				failed.Store(k.Path, err)
			}
			<-free
		})
	}
	running.Wait()
	status := 0
	failed.Range(func(any, any) bool { status = 1; return false })
	return status
}

// run runs the tests of a package for a limited time.
func (k order) run(o orders, limit time.Duration, w *lineWriter) error {
	args := slices.Concat([]string{"-t", "-p", k.Path, k.Binary}, o.Flags, []string{
		"-test.v=test2json", "-test.paniconexit0", "-test.timeout=" + max(time.Second, limit).String(),
	})
	cmd := exec.Command(o.Test2JSON, args...)
	cmd.Dir = k.Folder
	cmd.Stderr = os.Stderr
	lines, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	for r := bufio.NewReader(lines); ; {
		line, err := r.ReadBytes('\n')
		w.write(line)
		if err != nil {
			break
		}
	}
	return cmd.Wait()
}

// lineWriter writes whole lines of many.
type lineWriter struct {
	mu  sync.Mutex
	out io.Writer
}

func (w *lineWriter) write(line []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = w.out.Write(line)
}
