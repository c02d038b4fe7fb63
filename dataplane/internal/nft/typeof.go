package nft

import "encoding/binary"

// userdata writes the data that nft stores with objects for its own listings: attributes with a
// byte for the type and a byte for the length (libnftnl's udata.h). Without this data, nft lists a
// set that was declared with "typeof" in a form that nft can't parse.
type userdata struct{ b []byte }

// These are expression kinds (nft's enum expr_types).
const (
	exprVerdict = 1
	exprPayload = 7
	exprExthdr  = 8
	exprMeta    = 9
	exprConcat  = 13
	exprNumgen  = 23
)

// These are the attributes of sets (libnftnl's enum nftnl_udata_set_types).
const (
	udataKeyOrder     = 0
	udataDataOrder    = 1
	udataKeyTypeof    = 3
	udataDataTypeof   = 4
	udataDataInterval = 6
)

func (u *userdata) uint32(kind int, v uint32) {
	u.b = append(u.b, byte(kind), 4)
	u.b = binary.NativeEndian.AppendUint32(u.b, v)
}

func (u *userdata) string(kind int, s string) {
	u.b = append(u.b, byte(kind), byte(len(s)+1))
	u.b = append(u.b, s...)
	u.b = append(u.b, 0)
}

func (u *userdata) nest(kind int, inside func()) {
	at := len(u.b)
	u.b = append(u.b, byte(kind), 0)
	inside()
	u.b[at+1] = byte(len(u.b) - at - 2)
}

// expr writes the description of an expression: its kind, and the attributes that inside writes.
func (u *userdata) expr(kind uint32, inside func()) {
	u.uint32(0, kind)
	u.nest(1, inside)
}

// comment returns the user data for a comment on a rule or element, or nil if s is empty. nft
// accepts at most 127 bytes.
func comment(s string) []byte {
	if s == "" {
		return nil
	}
	var u userdata
	u.string(udataRuleText, s[:min(len(s), maxComment)])
	return u.b
}

const maxComment = 127
