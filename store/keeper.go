package store

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"vipd/balancer/atomicfile"
	"vipd/balancer/wake"
)

const (
	// keepPause is the least time between two writes of a Keeper; a write takes at most one part in keepShare of the time.
	keepPause = 5 * time.Second
	keepShare = 20
)

// Keeper keeps the last good state of a source in a file, for its next start.
type Keeper[S any] struct {
	// Path is the file; "" means that nothing is kept.
	Path   string
	what   string // what is kept, for the log
	log    *slog.Logger
	encode func(*bufio.Writer, S) error
	// latest has the state that is to be written, if there is one that is newer than the file.
	latest chan S
	failed string // the last error that was logged
}

// NewKeeper returns the keeper of a file in dir, of what is kept there, as encode writes it; without dir it keeps nothing.
func NewKeeper[S any](dir, name, what string, log *slog.Logger, encode func(*bufio.Writer, S) error) *Keeper[S] {
	k := &Keeper[S]{what: "the last good state of " + what, log: log, encode: encode, latest: make(chan S, 1)}
	if dir != "" {
		k.Path = filepath.Join(dir, name)
	}
	return k
}

// Load has decode read what an earlier process has kept, if there is anything. A file that decode refuses is set aside; one that can't be
// read stays until something newer is kept.
func (k *Keeper[S]) Load(decode func(text []byte) error) {
	if k.Path == "" {
		return
	}
	text, err := os.ReadFile(k.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		k.log.Error(k.what+" can't be read, and is left as it is", "err", err)
	default:
		if err = atomicfile.SetAside(k.Path, decode(text)); err != nil {
			k.log.Error(k.what+" is damaged", "err", err)
		}
	}
}

// Keep has s written some time. It never blocks.
func (k *Keeper[S]) Keep(s S) {
	for {
		select {
		case k.latest <- s:
			return
		case <-k.latest: // it is older
		}
	}
}

// Run writes what Keep is given, until ctx has ended and the last of it is written. What could not be written is tried again.
func (k *Keeper[S]) Run(ctx context.Context) {
	if k.Path == "" {
		return
	}
	for ctx.Err() == nil {
		select {
		case s := <-k.latest:
			began := time.Now()
			if !k.write(s) {
				select {
				case k.latest <- s:
				default: // there is a newer one
				}
			}
			wake.Sleep(ctx, max(keepPause, keepShare*time.Since(began)))
		case <-ctx.Done():
		}
	}
	select {
	case s := <-k.latest:
		k.write(s)
	default:
	}
}

// write replaces the file as a whole, so that a crash leaves the old one or the new one. That it can't is told once.
func (k *Keeper[S]) write(s S) bool {
	failed := ""
	if err := atomicfile.Write(k.Path, atomicfile.Lasting, func(w *bufio.Writer) error { return k.encode(w, s) }); err != nil {
		failed = "keeping state in state_dir: " + err.Error()
	}
	if failed != "" && failed != k.failed {
		k.log.Error(k.what+" is not kept", "err", failed)
	}
	k.failed = failed
	return failed == ""
}
