package atomicfile

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// tempSuffix ends the name of the temporary file that holds the new content until the rename. If a
// process is killed before the rename, the next Write overwrites this file, and Remove deletes it.
const tempSuffix = ".tmp"

// Lifetime is how long the content of a file is valid.
type Lifetime bool

// These are the lifetimes. A ThisBoot file is not synced to disk, because a reboot makes it
// invalid.
const (
	Lasting  Lifetime = true
	ThisBoot Lifetime = false
)

// Write atomically replaces the file at path with the output of the function write, so a reader
// sees the old or the new content. Only the owner may read the file. A missing folder is created
// for a ThisBoot file, but not for a Lasting file, because its disk may not be mounted. The
// function need not check errors of the buffered writer, because Write does.
//
// Only one process may write a file, and only one goroutine at a time.
func Write(path string, lifetime Lifetime, write func(*bufio.Writer) error) error {
	if lifetime == ThisBoot {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
	}
	if err := os.Remove(path + tempSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path+tempSuffix, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<16)
	if err = write(w); err == nil {
		err = w.Flush()
	}
	if err == nil && lifetime == Lasting {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// SetAside renames an unreadable file to NAME.broken, because the next Write would replace it. The
// argument why is the error that reading the file returned. SetAside returns this error with the
// new name, or nil if why is nil.
func SetAside(path string, why error) error {
	if why == nil {
		return nil
	}
	aside := path + ".broken"
	return fmt.Errorf("the unreadable file was renamed to %s: %w", aside, errors.Join(why, os.Rename(path, aside)))
}

// Remove deletes the file at path, and the temporary file of a process that was killed in Write. A
// missing file is not an error.
func Remove(path string) error {
	var failed []error
	for _, name := range []string{path, path + tempSuffix} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// Leftovers returns the temporary files of processes that were killed in Write for path. Temporary
// files of earlier versions end in a 32-bit number.
func Leftovers(path string) (files []string) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil // the code that uses the folder reports the error
	}
	for _, e := range entries {
		end, ok := strings.CutPrefix(e.Name(), filepath.Base(path)+".")
		_, notNumber := strconv.ParseUint(strings.TrimPrefix(end, "tmp-"), 10, 32)
		if ok && ("."+end == tempSuffix || notNumber == nil) {
			files = append(files, filepath.Join(filepath.Dir(path), e.Name()))
		}
	}
	return files
}
