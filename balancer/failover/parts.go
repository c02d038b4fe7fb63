package failover

// parts are the components of a node. Each uses only the components before it.
type parts struct {
	*env
	etcd    *view
	writer  *writer
	session *session
	gate    *gate
	peers   *peers
	jurors  *jurors
	vips    *vips
	ranking *ranking
}

func newParts(o Options, learn func(RecordChange)) *parts {
	e := &env{o: o, stale: true}
	p := &parts{env: e, etcd: newView(e), vips: newVIPs()}
	p.writer = newWriter(e, p.etcd, learn)
	p.session = newSession(e, p.etcd, p.writer)
	p.gate = &gate{env: e, session: p.session}
	p.peers = newPeers(e, p.etcd)
	p.jurors = newJurors(e, p.etcd)
	p.ranking = &ranking{env: e, etcd: p.etcd, gate: p.gate, peers: p.peers, vips: p.vips, counted: map[string]int{}}
	return p
}
