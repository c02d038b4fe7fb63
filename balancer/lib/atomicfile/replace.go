package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
)

// Replace atomically replaces the text of an existing file, and keeps its mode and owner. If path
// is a symbolic link, Replace replaces its target. The new text survives a power failure.
func Replace(path string, text []byte) error {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*"+tempSuffix)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = own(f, info)
	}
	if err == nil {
		err = f.Chmod(info.Mode()) // after own, which clears some bits
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncFolder(filepath.Dir(path))
}
