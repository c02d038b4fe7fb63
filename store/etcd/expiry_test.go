package etcd_test

import (
	"strings"
	"testing"
	"time"

	"vipd/store/etcd/client"
	"vipd/test/etcdkit"
)

// TestExpiry reads certificates with long and short lifetimes. A certificate must be reported when
// both less than two weeks and less than a quarter of its lifetime remain.
func TestExpiry(t *testing.T) {
	files := etcdkit.NewFiles(t)
	for until, want := range map[time.Duration][]struct {
		before time.Duration
		says   string
	}{
		365 * 24 * time.Hour: {{15 * 24 * time.Hour, ""}, {13 * 24 * time.Hour, " expires on "}, {-time.Hour, " expired on "}},
		4 * time.Hour:        {{2 * time.Hour, ""}, {time.Hour, " expires on "}},
	} {
		ends := time.Now().Add(until).Truncate(time.Second)
		c := client.Config{}
		c.CertFile, c.KeyFile = files.ClientUntil(t, ends)
		for _, w := range want {
			text := c.Expiry(ends.Add(-w.before))
			if says := w.says + ends.UTC().Format(time.RFC3339); w.says == "" && text != "" || w.says != "" && !strings.HasPrefix(text, c.CertFile+says) {
				t.Errorf("certificate that expires after %s: text %s before its expiry = %q, want %q", until, w.before, text, w.says)
			}
		}
	}
	if text := (client.Config{CertFile: files.ClientKey}).Expiry(time.Now()); text != "" {
		t.Errorf("Expiry() of a file without a certificate = %s, want \"\"", text)
	}
}
