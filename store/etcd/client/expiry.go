package client

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"time"
)

// A client certificate is reported when its remaining lifetime is at most expiryNotice.
// Certificates with a short total lifetime are usually renewed by a program, so they are reported
// only in the last quarter of it.
const expiryNotice = 14 * 24 * time.Hour

// Expiry returns a message if the client's certificate expires soon or has expired, and ""
// otherwise. It also returns "" if the file can't be read, because connecting reports that error.
func (c Config) Expiry(now time.Time) string {
	if c.CertFile == "" {
		return ""
	}
	text, err := os.ReadFile(c.CertFile)
	if err != nil {
		return ""
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		leaf, err := x509.ParseCertificate(block.Bytes)
		if err != nil || leaf.NotAfter.Sub(now) > min(expiryNotice, leaf.NotAfter.Sub(leaf.NotBefore)/4) {
			return ""
		}
		at := leaf.NotAfter.UTC().Format(time.RFC3339)
		if now.After(leaf.NotAfter) {
			return fmt.Sprintf("%s expired on %s, and etcd refuses it: renew it", c.CertFile, at)
		}
		return fmt.Sprintf("%s expires on %s, and etcd will then refuse it: renew it", c.CertFile, at)
	}
	return ""
}
