# Part of ./members and ./users: creates certificates. Each certificate gets a new key that only its owner can read.

# extensions NAMES prints the openssl configuration for certificates of servers and clients. NAMES are the names and
# addresses that a certificate is valid for.
extensions() {
	cat <<END
[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical, CA:true, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[leaf]
basicConstraints = critical, CA:false
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
${1:+subjectAltName = $1}
END
}

# authority NAME SUBJECT creates OUT/NAME.crt and .key, valid for ten years.
authority() {
	[ -e "$OUT/$1.crt" ] && return
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -config <(extensions "") -extensions authority \
		-subj "/CN=$2" -days 3650 -keyout "$OUT/$1.key" -out "$OUT/$1.crt" 2>/dev/null
}

# certificate FILE AUTHORITY SUBJECT NAMES creates FILE.crt and .key, valid for two years.
certificate() {
	[ -e "$1.crt" ] && return
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -config <(extensions "$4") -extensions leaf \
		-CA "$OUT/$2.crt" -CAkey "$OUT/$2.key" -subj "$3" -days 730 -keyout "$1.key" -out "$1.crt" 2>/dev/null
}

# reached_as NAME ADDRESS prints the name and address that a certificate is valid for. NAME may be empty; an IPv6 address
# is in brackets, as in URLs.
reached_as() { echo "${1:+DNS:$1, }IP:$(tr -d '[]' <<<"$2")"; }
