package client

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"time"
)

// expiryNotice is the maximum remaining lifetime of a client certificate that is reported.
// Certificates with a total lifetime of less than several weeks are usually renewed by a program.
// They are reported in the last quarter of their lifetime.
const expiryNotice = 14 * 24 * time.Hour

// Expiry reports that the client's certificate expires soon or has expired. Otherwise it returns
// "". It also returns "" if the file can't be read, because connecting reports that error.
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
			return fmt.Sprintf("%s expired on %s, and etcd has refused it since: renew it", c.CertFile, at)
		}
		return fmt.Sprintf("%s expires on %s, and etcd refuses it from then on: renew it", c.CertFile, at)
	}
	return ""
}
