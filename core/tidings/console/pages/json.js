/** JSON whose 64-bit integers stay exact: versions and positions may be larger than a double can hold. */
export function parseJson(text) {
  return JSON.parse(text, (_, value, context) => {
    if (typeof value !== "number" || Number.isSafeInteger(value) || !/^-?\d+$/.test(context?.source ?? ""))
      return value;
    return BigInt(context.source);
  });
}

export function writeJson(value, indent) {
  return JSON.stringify(value, (_, one) => (typeof one === "bigint" ? raw(one) : one), indent);
}

function raw(integer) {
  return JSON.rawJSON ? JSON.rawJSON(String(integer)) : String(integer);
}
