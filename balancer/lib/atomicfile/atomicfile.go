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

// temporary is what is added to a file's name for the text that is to replace it. The next Write overwrites what a process
// left there that was killed, and Remove removes it.
const temporary = ".tmp"

// Lifetime says how long a file has a meaning.
type Lifetime bool

// The lifetimes: a file for this boot is not synced to the disk, for it means nothing after the machine has stopped.
const (
	Lasting  Lifetime = true
	ThisBoot Lifetime = false
)

// Write puts what write writes in the place of the file at path, at once: a reader sees the old text or the new one. Only the
// owner may read it. The folder of a file for this boot is made if it is missing; that of a lasting one may be a disk that is not
// mounted. Write finds errors of the writer itself; write returns its own.
// A file has one process that writes it, and one goroutine at a time.
func Write(path string, lifetime Lifetime, write func(*bufio.Writer) error) error {
	if lifetime == ThisBoot {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
	}
	if err := os.Remove(path + temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path+temporary, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
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

// SetAside renames the file at path to NAME.broken, where why is the error of reading it: else the next Write would replace it. It
// returns that error with the new name; nil means that nothing is wrong.
func SetAside(path string, why error) error {
	if why == nil {
		return nil
	}
	aside := path + ".broken"
	return fmt.Errorf("the file is now %s: %w", aside, errors.Join(why, os.Rename(path, aside)))
}

// Remove removes the file at path, and what a process that was killed in Write has left beside it. A file that is not there
// is no error.
func Remove(path string) error {
	var failed []error
	for _, name := range []string{path, path + temporary} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// Leftovers returns the files beside the one at path that processes left which were killed in Write, also those of earlier
// versions: their names end in a number of 32 bits.
func Leftovers(path string) (files []string) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil // the user of the folder says so
	}
	for _, e := range entries {
		end, ok := strings.CutPrefix(e.Name(), filepath.Base(path)+".")
		_, notNumber := strconv.ParseUint(strings.TrimPrefix(end, "tmp-"), 10, 32)
		if ok && ("."+end == temporary || notNumber == nil) {
			files = append(files, filepath.Join(filepath.Dir(path), e.Name()))
		}
	}
	return files
}
