#!/bin/sh
# outside.sh ADDRESS: runs registries as a site finds them outside. ADDRESS:5443 has TLS and a login, ADDRESS:5080 has neither. They get images that are made
# from this host's files. /data1/share gets the authority of the certificate, and archives of images.
set -eu
address=$1
here=$(cd "$(dirname "$0")" && pwd)
umask 022
ln -sf /dev/null /etc/systemd/system/docker-registry.service
apt-get update --quiet=2
DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends docker-registry skopeo buildah podman python3-pip > /dev/null

mkdir -p /srv/outside && cd /srv/outside
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=outside -keyout ca.key -out ca.crt 2> /dev/null
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$address" -keyout tls.key -out tls.csr 2> /dev/null
printf 'subjectAltName=IP:%s\n' "$address" > tls.ext
openssl x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -set_serial 1 -days 2 -extfile tls.ext -out tls.crt 2> /dev/null
perl -e 'print "puller:", crypt("word-of-outside", "\$2y\$05\$abcdefghijklmnopqrstuu"), "\n"' > htpasswd
for kind in secure plain; do
    {
        printf 'version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {filesystem: {rootdirectory: /var/lib/docker/outside}}\n'
        if [ $kind = secure ]; then
            printf 'http: {addr: "%s:5443", tls: {certificate: /srv/outside/tls.crt, key: /srv/outside/tls.key}}\n' "$address"
            printf 'auth: {htpasswd: {realm: outside, path: /srv/outside/htpasswd}}\n'
        else
            printf 'http: {addr: "%s:5080"}\n' "$address"
        fi
    } > $kind.yml
    systemd-run --quiet --unit "outside-$kind" docker-registry serve "/srv/outside/$kind.yml"
done

sh "$here/image.sh" small /data1/share/small.tar
sh "$here/image.sh" work /data1/share/work.tar
for _ in 1 2 3 4 5 6 7 8 9 10; do
    (: < "/dev/tcp/$address/5080") 2> /dev/null && break || sleep 1
done
to="--quiet --dest-tls-verify=false"
skopeo copy $to docker-archive:/data1/share/small.tar "docker://$address:5080/outside/small:1"
skopeo copy $to docker-archive:/data1/share/work.tar "docker://$address:5080/outside/work:1"
# An image for two architectures. The second one cannot run here.
printf '[storage]\ndriver = "overlay"\nrunroot = "/run/outside"\ngraphroot = "/var/lib/docker/outside-store"\n' > storage.conf
export CONTAINERS_STORAGE_CONF=/srv/outside/storage.conf
buildah manifest create tools > /dev/null
buildah manifest add --tls-verify=false --arch amd64 tools "docker://$address:5080/outside/small:1" > /dev/null
arm=$(buildah from --quiet --tls-verify=false "docker://$address:5080/outside/small:1")
buildah config --arch arm64 "$arm"
buildah commit --quiet --rm --tls-verify=false "$arm" "docker://$address:5080/outside/small-arm:1" > /dev/null
buildah manifest add --tls-verify=false --os linux --arch arm64 tools "docker://$address:5080/outside/small-arm:1" > /dev/null
buildah manifest push --quiet --tls-verify=false --all tools "docker://$address:5080/outside/tools:1" > /dev/null
buildah manifest rm tools > /dev/null
# What an operator carries to a site without internet access.
skopeo copy --quiet --src-tls-verify=false --all "docker://$address:5080/outside/tools:1" oci-archive:/data1/share/tools.tar
rm /data1/share/work.tar
cp ca.crt /data1/share/outside.crt
