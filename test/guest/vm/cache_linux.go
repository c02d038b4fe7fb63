package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// source provides unpacked kernels.
type source interface {
	// newest returns the name of the newest kernel, which becomes the name of its directory.
	newest(ctx context.Context) (string, error)
	// unpack extracts the kernel with the given name into an existing, empty directory.
	unpack(ctx context.Context, name, into string) error
}

// cache stores unpacked kernels. Each kernel has a directory with its name. The directory is
// complete, because it gets this name only after it was filled.
type cache struct {
	dir    string
	source source
	log    func(format string, args ...any)
}

// unfinished is the name prefix of directories that are being created, or that a killed process
// left incomplete.
const unfinished = "unfinished-"

// lockName is the name of lock files. A process that changes the cache holds the cache's lock, and
// a process that uses a kernel holds the lock in the kernel's directory.
const lockName = "lock"

// kernel returns the directory of the newest kernel, and a function that releases it. If the newest
// kernel can't be determined, it returns the kernel that was added last.
func (c *cache) kernel(ctx context.Context) (string, func(), error) {
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return "", nil, fmt.Errorf("making the cache: %w", err)
	}
	unlock, err := lock(ctx, filepath.Join(c.dir, lockName), unix.LOCK_EX)
	if err != nil {
		return "", nil, err
	}
	defer unlock()
	name, err := c.source.newest(ctx)
	if err != nil {
		last := c.last()
		if last == "" {
			return "", nil, err
		}
		c.log("using the kernel of last time: %v", err)
		name = last
	}
	folder := filepath.Join(c.dir, name)
	if _, err := os.Stat(folder); errors.Is(err, os.ErrNotExist) {
		if err := c.add(ctx, name); err != nil {
			return "", nil, err
		}
	}
	release, err := lock(ctx, filepath.Join(folder, lockName), unix.LOCK_SH)
	if err != nil {
		return "", nil, err
	}
	return folder, release, nil
}

// add creates the directory of a kernel, and removes the directories of unused kernels.
func (c *cache) add(ctx context.Context, name string) error {
	for _, old := range c.folders() {
		if strings.HasPrefix(old, unfinished) {
			c.remove(old)
		}
	}
	made, err := os.MkdirTemp(c.dir, unfinished)
	if err != nil {
		return fmt.Errorf("making room for a kernel: %w", err)
	}
	if err := c.source.unpack(ctx, name, made); err != nil {
		return errors.Join(fmt.Errorf("unpacking %s: %w", name, err), os.RemoveAll(made))
	}
	if err := os.Rename(made, filepath.Join(c.dir, name)); err != nil {
		return fmt.Errorf("keeping the kernel: %w", err)
	}
	for _, old := range c.folders() {
		if old != name && !inUse(filepath.Join(c.dir, old, lockName)) {
			c.remove(old)
		}
	}
	return nil
}

func (c *cache) remove(name string) {
	if err := os.RemoveAll(filepath.Join(c.dir, name)); err != nil {
		c.log("an old kernel stays: %v", err)
	}
}

func (c *cache) folders() []string {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// last returns the kernel that was added last, or "".
func (c *cache) last() string {
	var last string
	var at time.Time
	for _, name := range c.folders() {
		info, err := os.Stat(filepath.Join(c.dir, name))
		if err == nil && !strings.HasPrefix(name, unfinished) && info.ModTime().After(at) {
			last, at = name, info.ModTime()
		}
	}
	return last
}

// lock waits for a lock on a file, which it creates if missing, and returns a function that
// releases it. The kernel releases the lock of a dead process.
func lock(ctx context.Context, path string, how int) (func(), error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("locking the cache: %w", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = f.Close()
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("waiting for whoever holds %s: %w", path, context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// inUse reports whether another process holds a lock on the file.
func inUse(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
}
