package tomlfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// maxSize is the maximum size in bytes of a file.
const maxSize = 64 << 20

// ReadFile reads a file under the same conditions as a Source: after links are followed, it must be
// a regular file of at most 64 MiB. ReadFile never blocks, even on a pipe.
func ReadFile(path string) ([]byte, error) {
	t, err := readText(path)
	return t.bytes, err
}

// writers tells whether a process has a file open for writing, which may be unknown.
type writers int

const (
	unknownWriters writers = iota
	noWriters
	someWriters
)

// text is the text of a file, with details of the read.
type text struct {
	path  string
	id    identity
	began time.Time
	bytes []byte
	sum   uint64
	// writers reports whether the file had a writer during the read.
	writers writers
}

// blank reports whether the text is empty or only white space.
func (t *text) blank() bool { return len(bytes.TrimSpace(t.bytes)) == 0 }

// readText reads a file. It does not set sum.
func readText(path string) (text, error) {
	began := time.Now()
	file, info, err := openRegular(path)
	if err != nil {
		return text{}, err
	}
	defer func() { _ = file.Close() }() // the file was only read
	before := writersOf(file)
	var buffer bytes.Buffer
	buffer.Grow(int(info.Size()) + bytes.MinRead)
	if _, err = buffer.ReadFrom(io.LimitReader(file, maxSize+1)); err != nil {
		return text{}, err
	}
	if buffer.Len() > maxSize { // the file has grown in the meantime
		return text{}, tooLarge(path)
	}
	// If a writer started or ended during the read, the file may have contained only half of the
	// new text.
	return text{path: path, id: identityOf(info), began: began, bytes: buffer.Bytes(), writers: max(before, writersOf(file))}, nil
}

// openRegular opens a file without blocking. Opening a pipe waits for a writer, and opening a
// device may have effects. So openRegular opens neither, unless one replaces a regular file between
// the check and the call to open.
func openRegular(path string) (*os.File, fs.FileInfo, error) {
	info, err := os.Stat(path)
	if err == nil {
		err = readable(path, info)
	}
	if err != nil {
		return nil, nil, err
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	if info, err = file.Stat(); err == nil {
		err = readable(path, info)
	}
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return file, info, nil
}

// readable returns the reason why a file can't be read, whatever its content, or nil.
func readable(path string, info fs.FileInfo) error {
	switch {
	case info.IsDir():
		return &fs.PathError{Op: "read", Path: path, Err: errors.New("a folder: name a file in it")}
	case !info.Mode().IsRegular():
		return &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	case info.Size() > maxSize:
		return tooLarge(path)
	}
	return nil
}

func tooLarge(path string) error {
	return &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("larger than %d MiB; split it", maxSize>>20)}
}
