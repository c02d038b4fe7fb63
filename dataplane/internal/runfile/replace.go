package runfile

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
)

// Leftovers returns the files beside the one at path that processes have left which were killed within Replace.
func Leftovers(path string) []string {
	all, _ := filepath.Glob(path + ".[0-9]*") // fails for malformed patterns alone
	return all
}

// Replace puts what write writes in the place of the file at path, at once: who reads it sees the old text or the new one.
// The folder is made where it is missing. Nothing is synced to the disk, for it means nothing after the machine has stopped.
// Errors of the writer are Replace's to find.
func Replace(path string, write func(*bufio.Writer)) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	write(w)
	err = errors.Join(w.Flush(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
