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

// mostText is how much a certificate file may hold, in bytes: the authorities of a whole system are a quarter of it.
const mostText = 1 << 20

// files holds what a definition's certificate files said when they were last read. The paths may come from any user who may write
// services, and a file system may hang: they are read apart from the checks, which wait no longer than they may take.
type files struct {
	health *balancer.Health
	system *systemStore
	// read looks at the files, and reads them if they are others than known was made from, which may be nil.
	read func(h *balancer.Health, known *certificates) (*certificates, error)

	mu    sync.Mutex // held for moments, and never while a file is touched
	known *certificates
	look  *look // the one under way; nil means none
}

// certificates is what the files said. It does not change any more.
type certificates struct {
	stamp   [3]stamp
	authors *x509.CertPool // nil means the system's
	own     []tls.Certificate
}

// stamp tells one version of a file from the next.
type stamp struct {
	size     int64
	modified time.Time
}

// look is one look at the files, for all checks that want it meanwhile.
type look struct {
	over  chan struct{}
	found *certificates
	err   error
}

func newFiles(h *balancer.Health, system *systemStore) *files {
	f := &files{health: h, system: system}
	f.read = f.readCertificates
	return f
}

// load returns what the files say now: certificates are renewed under a running daemon. A look that hangs outlives ctx, and
// the Runner: nothing ends a read that the kernel does not end. There is never more than one of a definition.
func (f *files) load(ctx context.Context) (*certificates, error) {
	f.mu.Lock()
	l := f.look
	if l == nil {
		l = &look{over: make(chan struct{})}
		f.look = l
		go f.run(l, f.known)
	}
	f.mu.Unlock()
	select {
	case <-l.over:
		return l.found, l.err
	case <-ctx.Done():
		return nil, localf("reading the certificate files: not over in time; is their file system there?")
	}
}

// run does a look, and lets the next one begin.
func (f *files) run(l *look, known *certificates) {
	l.found, l.err = f.read(f.health, known)
	f.mu.Lock()
	f.known, f.look = l.found, nil
	f.mu.Unlock()
	close(l.over)
}

// readCertificates is what files.read does.
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
			return nil, localf("looking at a certificate file: %w", err)
		}
		now.stamp[i] = stamp{info.Size(), info.ModTime()}
	}
	if known != nil && known.stamp == now.stamp && (h.CAFile != "" || known.authors == now.authors) {
		return known, nil
	}
	if h.CAFile != "" {
		text, err := readText(h.CAFile)
		if err != nil {
			return nil, localf("reading ca_file: %w", err)
		}
		now.authors = x509.NewCertPool()
		if !now.authors.AppendCertsFromPEM(text) {
			return nil, localf("reading ca_file: %s holds no certificate", h.CAFile)
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
	cert, err := readText(certFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := readText(keyFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}

// readText reads a regular file of at most mostText bytes. It does not so much as open anything else: that may wait for
// ever, never end, or do something.
func readText(name string) ([]byte, error) {
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
	if !info.Mode().IsRegular() { // it is another one since
		return nil, localf("%s is not a regular file", name)
	}
	text, err := io.ReadAll(io.LimitReader(file, mostText+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > mostText:
		return nil, localf("%s has more than %d bytes", name, mostText)
	}
	return text, nil
}
