package etcdkit

import (
	"path/filepath"
	"strings"
)

// StartProxy starts etcd's gRPC proxy for the members at urls, or for all members if urls is empty.
// It waits until the proxy serves. The returned Member has no data.
func (c *Cluster) StartProxy(urls ...string) *Member {
	c.t.Helper()
	if len(urls) == 0 {
		urls = c.Endpoints()
	}
	m := &Member{
		t: c.t, binary: c.Members[0].binary, name: "proxy", log: filepath.Join(c.t.TempDir(), "log"),
		client: freePorts(c.t, c.host, 1)[0],
	}
	m.flags = []string{
		"grpc-proxy", "start", "--endpoints", strings.Join(urls, ","),
		"--listen-addr", m.client, "--advertise-client-url", m.client,
	}
	if c.options.TLS {
		m.flags = append(m.flags,
			"--cacert", c.Files.CA, "--cert", c.Files.ClientCert, "--key", c.Files.ClientKey,
			"--trusted-ca-file", c.Files.CA, "--cert-file", c.Files.ServerCert, "--key-file", c.Files.ServerKey)
	}
	m.ready = func() bool { return c.serves(m) }
	m.launch()
	m.wait()
	return m
}
