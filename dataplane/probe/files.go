package probe

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"vipd/balancer"
)

// maxFile is the maximum size of a certificate file, in bytes. A file with all system authorities
// has about a quarter of this size.
const maxFile = 1 << 20

// files caches the content of a definition's certificate files. Service definitions determine the
// paths, and a file system may hang. Therefore, a goroutine reads the files, and checks wait for it
// only until their timeout.
type files struct {
	health *balancer.Health
	system *systemStore
	// read reads the files if they differ from known, or if known is nil.
	read func(h *balancer.Health, known *certificates) (*certificates, error)

	mu      sync.Mutex // locked briefly, and never during file I/O
	known   *certificates
	reading *reading // the current read, or nil
}

// certificates is the content of a definition's certificate files. It is immutable.
type certificates struct {
	stamp   [3]stamp
	authors *x509.CertPool // authorities to trust; nil means the system's authorities
	own     []tls.Certificate
}

// stamp identifies a version of a file.
type stamp struct {
	size     int64
	modified time.Time
}

// reading is an attempt to read the files. Several checks may wait for it.
type reading struct {
	done  chan struct{} // closed when the fields below are set
	found *certificates
	err   error
}

func newFiles(h *balancer.Health, system *systemStore) *files {
	f := &files{health: h, system: system}
	f.read = f.readCertificates
	return f
}

// load returns the current content of the files, because certificates may be renewed while vipd
// runs. A read that hangs may outlive ctx and the Runner, because it can't be canceled. Each
// definition has at most one read in progress.
func (f *files) load(ctx context.Context) (*certificates, error) {
	f.mu.Lock()
	r := f.reading
	if r == nil {
		r = &reading{done: make(chan struct{})}
		f.reading = r
		go f.run(r, f.known)
	}
	f.mu.Unlock()
	select {
	case <-r.done:
		return r.found, r.err
	case <-ctx.Done():
		return nil, localf("reading the certificate files took too long: check that their file system is reachable")
	}
}

// run reads the files for r, and wakes the checks that wait for r.
func (f *files) run(r *reading, known *certificates) {
	r.found, r.err = f.read(f.health, known)
	f.mu.Lock()
	f.known, f.reading = r.found, nil
	f.mu.Unlock()
	close(r.done)
}

// readCertificates reads the certificate files. If they have not changed since known was read, it
// returns known.
func (f *files) readCertificates(h *balancer.Health, known *certificates) (*certificates, error) {
	now := &certificates{}
	if h.CAFile == "" && h.Verify {
		now.authors = f.system.authorities()
	}
	for i, name := range []string{h.CAFile, h.CertFile, h.KeyFile} {
		if name == "" {
			continue
		}
		info, err := os.Stat(name)
		if err != nil {
			return nil, localf("checking a certificate file: %w", err)
		}
		now.stamp[i] = stamp{info.Size(), info.ModTime()}
	}
	if known != nil && known.stamp == now.stamp && (h.CAFile != "" || known.authors == now.authors) {
		return known, nil
	}
	if h.CAFile != "" {
		text, err := readText(h.CAFile, maxFile)
		if err != nil {
			return nil, localf("reading ca_file: %w", err)
		}
		now.authors = x509.NewCertPool()
		if !now.authors.AppendCertsFromPEM(text) {
			return nil, localf("reading ca_file: %s contains no certificate", h.CAFile)
		}
	}
	if h.CertFile != "" {
		pair, err := readPair(h.CertFile, h.KeyFile)
		if err != nil {
			return nil, localf("reading cert_file and key_file: %w", err)
		}
		now.own = []tls.Certificate{pair}
	}
	return now, nil
}

func readPair(certFile, keyFile string) (tls.Certificate, error) {
	cert, err := readText(certFile, maxFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := readText(keyFile, maxFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}

// readText reads a regular file of at most limit bytes. It does not open other kinds of files,
// because opening them may block forever or have side effects.
func readText(name string, limit int64) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, localf("%s is not a regular file", name)
	}
	file, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	if info, err = file.Stat(); err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // the file may have been replaced since the first check
		return nil, localf("%s is not a regular file", name)
	}
	text, err := io.ReadAll(io.LimitReader(file, limit+1))
	switch {
	case err != nil:
		return nil, err
	case int64(len(text)) > limit:
		return nil, localf("%s has more than %d bytes", name, limit)
	}
	return text, nil
}
