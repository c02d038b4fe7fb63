package fleet

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/balancer/health/quorum"
	"vipd/store/etcd/schema"
)

// PREFIX/health/ contains these keys. Each node has one lease for all of its keys:
//
//	NODE/live              the node takes part: checkerText
//	NODE/SERVICE/ADDRESS   the node's result for a target: voteText
//
// Each node has its own folder, so its etcd role can't write on behalf of another node.

// healthVersion is the version of both texts. Fields may be added without a new version. Texts with
// another version are ignored.
const healthVersion = 1

type checkerText struct {
	Version int `json:"version"`
	quorum.Checker
}

// voteText is the text of a vote. Its verdict is up or down, or unknown if the node can't run the
// check.
type voteText struct {
	Version int `json:"version"`
	quorum.Vote
}

const abstains balancer.Verdict = "unknown"

// precision is the precision of votes' timestamps.
const precision = time.Millisecond

// maxCause is the maximum length of a written cause, in bytes.
const maxCause = 200

func encodeVote(v *quorum.Vote) ([]byte, error) {
	text := voteText{healthVersion, *v}
	text.Since = v.Since.UTC().Round(precision)
	if v.Verdict == balancer.HealthUnknown {
		text.Verdict = abstains
	}
	if len(text.Cause) > maxCause {
		text.Cause = strings.ToValidUTF8(text.Cause[:maxCause], "") + "..."
	}
	return json.Marshal(text) // on a single line, because there are many votes
}

func encodeChecker(c quorum.Checker) ([]byte, error) {
	return json.Marshal(checkerText{healthVersion, c})
}

// posted is the content of a key below health/: either the presence of a node or one of its votes.
type posted struct {
	voteKey quorum.VoteKey // Target is zero if checker is set
	checker *quorum.Checker
	vote    *quorum.Vote
}

// healthKey parses a key below health/. For the node's own key, the target is the zero value.
func healthKey(k schema.Keys, key string) (quorum.VoteKey, error) {
	node, rest, _ := strings.Cut(strings.TrimPrefix(key, k.Prefix+schema.HealthFolder), "/")
	if err := schema.CheckNode(node); err != nil {
		return quorum.VoteKey{}, err
	}
	b := quorum.VoteKey{Node: balancer.NodeName(node)}
	if rest == schema.LiveName {
		return b, nil
	}
	service, address, _ := strings.Cut(rest, "/")
	var err error
	if b.Target, err = balancer.ParseTarget(balancer.Name(service), address); err != nil {
		return b, err
	}
	if !b.Target.Service.Valid() || b.Target.Address() != address || b.Target.Port == 0 {
		return b, fmt.Errorf("%s is not the key of a check result: it must have the form health/NODE/SERVICE/ADDRESS:PORT", schema.Quote(key))
	}
	return b, nil
}

// readHealth parses a key below health/ and its value.
func readHealth(k schema.Keys, key string, value []byte) (posted, error) {
	p := posted{}
	var err error
	if p.voteKey, err = healthKey(k, key); err != nil {
		return p, err
	}
	if len(value) > schema.MaxEntryText {
		return p, fmt.Errorf("%s has %d bytes; at most %d are allowed", schema.Quote(key), len(value), schema.MaxEntryText)
	}
	if p.voteKey.Target == (balancer.Target{}) {
		var text checkerText
		if err = json.Unmarshal(value, &text); err == nil {
			err = checkVersion(text.Version)
		}
		p.checker = &text.Checker
		return p, err
	}
	var text voteText
	if err = json.Unmarshal(value, &text); err == nil {
		err = checkVersion(text.Version)
	}
	p.vote = &text.Vote
	switch {
	case err != nil:
	case text.Verdict == abstains:
		text.Verdict = balancer.HealthUnknown
	case text.Verdict != balancer.HealthUp && text.Verdict != balancer.HealthDown:
		err = fmt.Errorf("%s is not a verdict", schema.Quote(string(text.Verdict)))
	}
	return p, err
}

func checkVersion(v int) error {
	if v != healthVersion {
		return fmt.Errorf("it has version %d, but this vipd reads only version %d", v, healthVersion)
	}
	return nil
}
