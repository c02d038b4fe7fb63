package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// insideFlag is an internal flag that makes this program execute orders in the guest.
const insideFlag = "-inside"

// orders describes the tests to run in the guest.
type orders struct {
	// Test2JSON is the path of the program test2json.
	Test2JSON string
	// Limit is the time limit of all pieces together. Parallel is the number of concurrent pieces.
	Limit    time.Duration
	Parallel int
	Flags    []string
	Packages map[string]order
	// Pieces are the pieces to run, in their starting order.
	Pieces []piece
}

// order is a package's test directory and test binary.
type order struct{ Folder, Binary string }

// save writes the orders to a file in a directory.
func (o orders) save(folder string) (file string, err error) {
	text, err := json.Marshal(o)
	if err != nil {
		return "", err
	}
	file = filepath.Join(folder, "orders")
	return file, os.WriteFile(file, text, 0o600)
}

// inside executes the orders in a file, and returns the exit status. It writes events like "go test
// -json". It writes a package's final event itself, once for each piece, because test2json omits
// that event if a test panics.
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
	for _, p := range o.Pieces {
		free <- struct{}{}
		running.Go(func() {
			defer func() { <-free }()
			began := time.Now()
			e := event{Action: "pass", Package: p.Path}
			if err := p.run(o, o.Limit-time.Since(start), w); err != nil {
				e.Action = "fail"
				failed.Store(true)
			}
			e.Elapsed = time.Since(began).Seconds()
			if line, err := json.Marshal(e); err == nil { // encoding never fails
				w.write(append(line, '\n'))
			}
		})
	}
	running.Wait()
	if failed.Load() {
		return 1
	}
	return 0
}

// run runs the piece within a time limit.
func (p piece) run(o orders, limit time.Duration, w *lineWriter) error {
	k := o.Packages[p.Path]
	args := slices.Concat([]string{"-t", "-p", p.Path, k.Binary}, o.Flags, []string{
		"-test.run=" + p.Run, "-test.skip=" + p.Skip, "-test.v=test2json", "-test.paniconexit0", "-test.timeout=" + max(time.Second, limit).String(),
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
		if e := (event{}); json.Unmarshal(line, &e) != nil || e.Test != "" || e.Action == "output" { // inside itself reports the results of pieces
			w.write(line)
		}
		if err != nil {
			break
		}
	}
	return cmd.Wait()
}

// lineWriter writes lines from concurrent writers without mixing them.
type lineWriter struct {
	mu  sync.Mutex
	out io.Writer
}

func (w *lineWriter) write(line []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = w.out.Write(line)
}
