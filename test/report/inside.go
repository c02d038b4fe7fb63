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
	"sync/atomic"
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
	start := time.Now()
	var running sync.WaitGroup
	var failed atomic.Bool
	free := make(chan struct{}, max(1, o.Parallel))
	for _, k := range o.Packages {
		free <- struct{}{}
		running.Go(func() {
			began, action := time.Now(), "pass"
			if err := k.run(o, o.Limit-time.Since(start), w); err != nil {
				action = "fail"
				failed.Store(true)
			}
			w.end(k, action, time.Since(began))
			<-free
		})
	}
	running.Wait()
	if failed.Load() {
		return 1
	}
	return 0
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

// end writes that a package has ended, which test2json says of a test that panics, but not of its package.
func (w *lineWriter) end(k order, action string, took time.Duration) {
	line, err := json.Marshal(event{Action: action, Package: k.Path, Elapsed: took.Seconds()})
	if err == nil { // there is nothing in it that could not be written
		w.write(append(line, '\n'))
	}
}
