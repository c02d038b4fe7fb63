package probe

import (
	"cmp"
	"crypto/x509"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"
)

// systemStore is the system's store of certificate authorities. Package crypto/x509 reads the store
// only once per process, so without systemStore, a CA that is added later would be trusted only
// after a restart. The zero value is ready to use. All definitions of a Runner share the store.
type systemStore struct {
	mu     sync.Mutex // also locked while files are read; checks wait for it only until their timeout
	looked time.Time
	stamps map[string]stamp
	pool   *x509.CertPool
}

// storePause is the minimum time between two checks of whether the store has changed.
const storePause = time.Second

// maxStoreFile is the maximum size of a file in the store, in bytes. The bundles of large
// organizations have several MiB.
const maxStoreFile = 64 << 20

// storePlaces returns the files and directories that crypto/x509 reads on Linux. It uses only the
// first readable file, but all directories.
func storePlaces() (files, folders []string) {
	if file := os.Getenv("SSL_CERT_FILE"); file != "" {
		files = []string{file}
	} else {
		files = []string{
			"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/pki/tls/cacert.pem",
			"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
		}
	}
	return files, filepath.SplitList(cmp.Or(os.Getenv("SSL_CERT_DIR"), "/etc/ssl/certs:/etc/pki/tls/certs"))
}

// authorities returns the authorities that the system currently trusts. It returns nil on systems
// other than Linux, or if no store is found. In these cases crypto/x509 uses its own authorities.
func (s *systemStore) authorities() *x509.CertPool {
	if runtime.GOOS != "linux" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.looked) < storePause {
		return s.pool
	}
	files, folders := storePlaces()
	stamps := map[string]stamp{}
	for _, name := range storeFiles(files, folders) {
		if info, err := os.Stat(name); err == nil {
			stamps[name] = stamp{info.Size(), info.ModTime()}
		}
	}
	if s.stamps == nil || !maps.Equal(s.stamps, stamps) {
		s.stamps, s.pool = stamps, readStore(files, folders)
	}
	s.looked = time.Now()
	return s.pool
}

// storeFiles returns files, followed by the files in the folders.
func storeFiles(files, folders []string) []string {
	all := slices.Clone(files)
	for _, folder := range folders {
		entries, err := os.ReadDir(folder)
		if err != nil {
			continue
		}
		for _, e := range entries {
			all = append(all, filepath.Join(folder, e.Name()))
		}
	}
	return all
}

// readStore reads the first readable file and all files in the folders. It returns nil if none of
// them contains a certificate.
func readStore(files, folders []string) *x509.CertPool {
	pool, found := x509.NewCertPool(), false
	for _, name := range files {
		if text, err := readText(name, maxStoreFile); err == nil {
			found = pool.AppendCertsFromPEM(text)
			break
		}
	}
	for _, name := range storeFiles(nil, folders) {
		if text, err := readText(name, maxStoreFile); err == nil && pool.AppendCertsFromPEM(text) {
			found = true
		}
	}
	if !found {
		return nil
	}
	return pool
}
